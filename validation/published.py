"""What the comparisons with published tables share: rows of CSV files, runs of all their ranks, lines, verdicts."""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from phantora.errors import UserError

WORKLOADS = Path(__file__).resolve().parent / "workloads"
GPUS_PER_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row: its name, the cluster, what runs there, and what was measured."""

    name: str
    cluster: str
    num_ranks: int
    arguments: tuple[str, ...]
    """Of the script or module."""
    measured_ms: float
    measured_gib: float = 0.0
    """Peak of reserved memory; 0 where none was published."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure, simulated and measured in the same unit."""

    name: str
    measured: float
    simulated: float
    unit: str = "ms"

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1.0

    @property
    def line(self) -> str:
        figures = f"measured {self.measured:10.1f} {self.unit:3}  simulated {self.simulated:10.1f} {self.unit:3}"
        return f"{self.name:52} {figures}  {self.error:+6.1%}"


def csv_rows(path: Path) -> list[dict[str, str]]:
    """UserError when the file cannot be read or has no rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not found:
        raise UserError(f"{path} has no rows")
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path)
    parser.add_argument("--row", action="append", help="only rows whose name contains this; may be repeated")
    parser.add_argument("--json", action="store_true")


def chosen(cases: list[Case], texts: list[str] | None) -> list[Case]:
    """UserError when --row names none."""
    found = [case for case in cases if not texts or any(text in case.name for text in texts)]
    if not found:
        raise UserError(f"no row has a name with {' or '.join(texts or ())} (such as '{cases[0].name}')")
    return found


def run_all_ranks(
    case: Case, out: Path, program: Sequence[str], options: Sequence[str] = (), *, folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """The case under `phantora record-and-simulate`, into `out`. RuntimeError with the end of the output when it fails."""
    nodes = -(-case.num_ranks // GPUS_PER_NODE)
    command = [
        sys.executable, "-m", "phantora.cli", "record-and-simulate", "--cluster", case.cluster, "--nnodes", str(nodes),
        "--nproc-per-node", str(case.num_ranks // nodes), "--out", str(out), "--ranks-on-terminal", "none",
        "--no-perfetto", "--no-chakra", *options, *program, *case.arguments,
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=folder, env={**os.environ, **(environment or {})}
    )
    if done.returncode:
        raise RuntimeError(f"{case.name}: {done.stdout[-400:]}{done.stderr[-800:]}")


def mean_error(rows: Iterable[Compared]) -> float:
    """Mean |error|."""
    return statistics.mean(abs(row.error) for row in rows)


def report(rows: list[Compared], verdicts: list[tuple[str, bool]], as_json: bool) -> int:
    """Print the rows, and what must hold (nothing when only some rows were run); the exit code."""
    if as_json:
        print(json.dumps([{**asdict(row), "error": row.error} for row in rows]))
    else:
        print("\n".join(row.line for row in rows))
    for text, holds in verdicts:
        print(f"{'holds' if holds else 'EXCEEDED'}: {text}", file=sys.stderr)
    return 0 if all(holds for _, holds in verdicts) else 1
