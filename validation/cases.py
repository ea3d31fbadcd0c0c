"""Measured training steps and how each is run again: cases files and the workload scripts beside them.

A cases file holds one object for each case: lines of JSON, or a list. Fields (as ../shared/workloads/train_bench.py and
validation/measure/step_bench.py write them): case, step_ms, gpu_busy_ms or compute_ms, kernels, max_allocated_mib,
max_reserved_mib. Cases with a world_size are those of validation/measure/cases.py, the others train_bench.py's;
`compiled-X` is X with model.compile().
"""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
SHARED_VARIABLE = "PHANTORA_SHARED"
_COMPILED = "compiled-"
_WORKLOAD = Path("workloads/train_bench.py")
_CASES = Path("reference/h200/models.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One training step: times in ms, peaks in MiB."""

    step_ms: float
    busy_ms: float
    kernels: float
    allocated_mib: float
    reserved_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How to run a case: processes, script, its arguments (without the numbers of steps)."""

    num_ranks: int
    script: Path
    arguments: tuple[str, ...]


def shared_folder() -> Path:
    """The folder with workloads/ and reference/: $PHANTORA_SHARED, else `shared` beside this tree."""
    given = os.environ.get(SHARED_VARIABLE)
    return Path(given) if given else ROOT.parent / "shared"


def default_cases() -> Path:
    """The shared cases file; UserError when it is not there."""
    return _existing(shared_folder() / _CASES, "cases file", "--cases")


def default_workload() -> Path:
    """The script with the shared cases; UserError when it is not there."""
    return _existing(shared_folder() / _WORKLOAD, "workload script", "--workloads")


def _existing(path: Path, what: str, option: str) -> Path:
    if not path.is_file():
        where = f"name it with {option}, or set {SHARED_VARIABLE} to the folder of both"
        raise UserError(f"no {what} at {path}: {where}")
    return path


def read_cases(path: Path) -> dict[str, Figures]:
    """case -> what was measured (the mean where a case was measured more often). Rows with an error are left out."""
    rows: dict[str, list[Figures]] = {}
    for row in _rows(path):
        if "error" not in row:
            rows.setdefault(row["case"], []).append(_figures(row, path))
    if not rows:
        raise UserError(f"{path} holds no measured case")
    return {case: _mean(found) for case, found in rows.items()}


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            return json.loads(text)
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no cases file: {error}") from None


def _figures(row: Mapping[str, Any], path: Path) -> Figures:
    try:
        ranks = row.get("ranks", [row])
        compute = [rank["compute_ms"] if "compute_ms" in rank else rank["gpu_busy_ms"] for rank in ranks]
        launched = row["kernels"] + row.get("copies", 0) - row.get("communication_kernels", 0)
        return Figures(
            step_ms=row["step_ms"],
            busy_ms=sum(compute) / len(compute),
            kernels=launched,
            allocated_mib=row["max_allocated_mib"],
            reserved_mib=row["max_reserved_mib"],
        )
    except KeyError as error:
        raise UserError(f"{path}: case {row.get('case', '?')} lacks the field {error}") from None


def _mean(found: list[Figures]) -> Figures:
    names = ("step_ms", "busy_ms", "kernels", "allocated_mib", "reserved_mib")
    return Figures(**{name: sum(getattr(one, name) for one in found) / len(found) for name in names})


def workload_of(case: str, train_bench: Path | None) -> Workload:
    """How `case` is run. train_bench: the script of the cases on one GPU (None: the shared one)."""
    several = _measured_here().get(case)
    if several is not None:
        num_ranks, (script, *options), _ = several
        path = ROOT / "validation" / "measure" / script
        return Workload(num_ranks=num_ranks, script=path, arguments=("--case", case, *options))
    return workload_of_all([case], train_bench)


def workload_of_all(cases: list[str], train_bench: Path | None) -> Workload:
    """Cases on one GPU, one after the other in one process, as train_bench.py measures them."""
    script = default_workload() if train_bench is None else _existing(train_bench, "workload script", "--workloads")
    named = [word for case in cases for word in ("--case", case)]
    if any(case.startswith(_COMPILED) for case in cases):
        wrapper = ROOT / "validation" / "compiled_bench.py"
        return Workload(num_ranks=1, script=wrapper, arguments=(str(script), *named))
    return Workload(num_ranks=1, script=script, arguments=tuple(named))


def is_train_bench_case(case: str) -> bool:
    """Whether a case is one of the script for one GPU, which runs several in one process."""
    return case not in _measured_here()


def _measured_here() -> dict[str, tuple[int, list[str], int]]:
    """TRAINING of measure/cases.py: a folder of scripts, which is no package."""
    path = ROOT / "validation" / "measure" / "cases.py"
    if not path.is_file():  # an installed package without its scripts
        return {}
    return runpy.run_path(str(path))["TRAINING"]
