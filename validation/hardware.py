"""Simulated training steps beside measured ones: step time, GPU busy time, kernels, peak memory.

usage: python -m phantora.validation hardware [CASE ...] --workloads train_bench.py --measured models.jsonl
       [--cluster lab-h200] [--out DIR]

Each case is run twice under `phantora record-and-simulate`, with two and with four steps: the difference is two steps
without the construction of the model. Measured: the lines of models.jsonl (fields as train_bench.py writes them).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.compute.roof import KERNEL_GAP_NS

# A step is bound by the GPU when it is busy for more than this share of it.
GPU_BOUND = 0.85
# Cases whose measured step waits for random numbers that the CPU draws; their GPU time is compared, not the step.
_DATA_BOUND = ("resnet50", "vit")
_FIELDS = ("step_ms", "busy_ms", "kernels", "allocated_mib", "reserved_mib")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One training step: times in ms, peaks in MiB."""

    step_ms: float
    busy_ms: float
    kernels: float
    allocated_mib: float
    reserved_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    case: str
    simulated: Figures
    measured: Figures

    @property
    def bound(self) -> str:
        """gpu, host, or data (the CPU draws the step's data: the GPU's busy time is compared instead)."""
        if self.case.startswith(_DATA_BOUND):
            return "data"
        return "gpu" if self.measured.busy_ms > GPU_BOUND * self.measured.step_ms else "host"

    def error(self, field: str) -> float:
        return getattr(self.simulated, field) / max(getattr(self.measured, field), 1e-9) - 1.0


def measured_figures(path: Path) -> dict[str, Figures]:
    """case -> what was measured; lines with an error are left out, and so are compiled variants."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "step_ms" in row and "gpu_busy_ms" in row:
            found[row["case"]] = Figures(
                step_ms=row["step_ms"],
                busy_ms=row["gpu_busy_ms"],
                kernels=row["kernels"],
                allocated_mib=row["max_allocated_mib"],
                reserved_mib=row["max_reserved_mib"],
            )
    return found


def simulate(case: str, workloads: Path, cluster: str, folder: Path) -> Figures:
    """Two runs of `case`. RuntimeError with the end of the output when one fails."""
    short, long = (_run(case, workloads, cluster, folder / f"{case}-{steps}", steps) for steps in (2, 4))
    (_, short_summary), (row, summary) = short, long
    ranks = [s["ranks"][0] for s in (short_summary, summary)]
    kernels = (ranks[1]["num_kernels"] - ranks[0]["num_kernels"]) / 2
    # A profiler's kernel times leave out the gap to the next kernel, which a price includes.
    gaps_ns = kernels * KERNEL_GAP_NS
    return Figures(
        step_ms=row["step_ms"],
        busy_ms=((ranks[1]["compute_ns"] - ranks[0]["compute_ns"]) / 2 - gaps_ns) / 1e6,
        kernels=kernels,
        allocated_mib=row["max_allocated_mib"],
        reserved_mib=row["max_reserved_mib"],
    )


def _run(case: str, workloads: Path, cluster: str, out: Path, steps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    result = out.with_suffix(".jsonl")
    command = [
        sys.executable, "-m", "phantora.cli", "record-and-simulate", "--cluster", cluster, "--out", str(out),
        "--ranks-on-terminal", "none", "--no-perfetto", "--no-chakra", str(workloads), "--case", case, "--steps",
        str(steps), "--warmup", "1", "--out", str(result),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row = json.loads(result.read_text(encoding="utf-8").splitlines()[-1]) if result.exists() else {"error": "no result"}
    if done.returncode or "error" in row:
        raise RuntimeError(f"{case}: {row.get('error', '')} {done.stdout[-400:]}{done.stderr[-800:]}")
    return row, json.loads((out / "summary.json").read_text(encoding="utf-8"))


def table(rows: list[Compared]) -> str:
    """A line a case, then mean and greatest |error| by what bounds the step."""
    head = f"{'case':36} {'bound':5}" + "".join(f" {name:>22}" for name in _FIELDS)
    lines = [head, *(_line(row) for row in rows), ""]
    for bound, field in (("gpu", "step_ms"), ("host", "step_ms"), ("data", "busy_ms")):
        lines += _summary(f"{bound}-bound {field}", [row for row in rows if row.bound == bound], field)
    for field in _FIELDS[1:]:
        lines += _summary(f"all {field}", rows, field)
    return "\n".join(lines)


def _line(row: Compared) -> str:
    cells = "".join(
        f" {getattr(row.simulated, f):7.5g}/{getattr(row.measured, f):7.5g} {row.error(f):+6.1%}" for f in _FIELDS
    )
    return f"{row.case:36} {row.bound:5}{cells}"


def _summary(title: str, rows: list[Compared], field: str) -> list[str]:
    errors = [abs(row.error(field)) for row in rows]
    if not errors:
        return []
    return [f"{title:28} {len(errors):2} cases  mean {sum(errors) / len(errors):6.1%}  max {max(errors):6.1%}"]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="hardware", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="all measured cases when none is named")
    parser.add_argument("--workloads", type=Path, required=True)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--cluster", default="lab-h200")
    parser.add_argument("--out", type=Path, help="keep the runs here")
    options = parser.parse_args(arguments)
    known = measured_figures(options.measured)
    wrong = [case for case in options.cases if case not in known]
    if wrong:
        parser.error(f"{wrong[0]} was not measured (measured: {', '.join(known)})")
    chosen = options.cases or [case for case in known if not case.startswith("compiled-")]
    rows, failed = [], []
    with tempfile.TemporaryDirectory() as temporary:
        for case in chosen:
            try:
                figures = simulate(case, options.workloads, options.cluster, options.out or Path(temporary))
                rows.append(Compared(case=case, simulated=figures, measured=known[case]))
                print(_line(rows[-1]), flush=True)
            except RuntimeError as error:
                failed.append(str(error))
    print("\n" + table(rows))
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    return 1 if failed else 0
