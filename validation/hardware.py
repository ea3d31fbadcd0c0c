"""Simulated training steps beside measured ones: step time, GPU busy time, kernels, peak memory.

usage: python -m phantora.validation hardware [CASE ...] [--cases FILE] [--workloads train_bench.py]
       [--own-process] [--cluster lab-h200] [--json] [--out DIR]

Each case runs twice under `phantora record-and-simulate`, with two and with four steps: the difference is two steps
without the construction of the model. Cases of train_bench.py were measured in one process, where a case begins with
what the ones before it left in the caching allocator; their memory is therefore that of a third run, with all of them up
to the last chosen one in the order of the file (with --own-process each was measured by itself: those of model_zoo.py in
validation/data/h200/zoo.jsonl). Which time counts depends on what bounds the measured step: the GPU (busy for
more than 85 % of it), the host, or the CPU that draws the step's data. Exit code 1 when a case failed or a limit is
exceeded; the limits are those of LIMITS.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.compute.roof import STEP_GAP_NS
from phantora.errors import UserError
from phantora.validation.cases import (
    Figures,
    Workload,
    default_cases,
    is_train_bench_case,
    read_cases,
    workload_of,
    workload_of_all,
)

# A step is bound by the GPU when it is busy for more than this share of it.
GPU_BOUND = 0.85
# Cases whose measured step waits for random images that the CPU draws; their GPU time is compared, not the step.
_DATA_BOUND = ("resnet50", "vit")
FIELDS = ("step_ms", "busy_ms", "kernels", "allocated_mib", "reserved_mib")
# (what bounds the cases, or all; field): greatest mean and greatest single |error|
LIMITS: dict[tuple[str, str], tuple[float | None, float | None]] = {
    ("gpu", "step_ms"): (0.03, 0.06),
    ("host", "step_ms"): (0.12, None),
    ("data", "busy_ms"): (0.03, 0.06),
    ("all", "kernels"): (None, 0.10),
    ("all", "allocated_mib"): (None, 0.005),
    ("all", "reserved_mib"): (None, 0.03),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A case: what was simulated, what was measured."""

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

    def as_dict(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "bound": self.bound,
            "simulated": dataclasses.asdict(self.simulated),
            "measured": dataclasses.asdict(self.measured),
            "error": {field: self.error(field) for field in FIELDS},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Errors of one figure over the cases of one kind, and what they may be."""

    bound: str
    field: str
    num_cases: int
    mean: float
    max: float
    mean_limit: float | None
    max_limit: float | None

    @property
    def holds(self) -> bool:
        return self.mean <= (self.mean_limit or 1e9) and self.max <= (self.max_limit or 1e9)


def checks(rows: list[Compared]) -> list[Check]:
    """One for each entry of LIMITS that has cases, then busy time of all (which has no limit)."""
    found = []
    for (bound, field), (mean_limit, max_limit) in {**LIMITS, ("all", "busy_ms"): (None, None)}.items():
        errors = [abs(row.error(field)) for row in rows if bound in ("all", row.bound)]
        if errors:
            found.append(
                Check(
                    bound=bound,
                    field=field,
                    num_cases=len(errors),
                    mean=sum(errors) / len(errors),
                    max=max(errors),
                    mean_limit=mean_limit,
                    max_limit=max_limit,
                )
            )
    return found


def simulate(case: str, workload: Workload, cluster: str, folder: Path) -> Figures:
    """Two runs of `case`. RuntimeError with the end of the output when one fails."""
    short, long = (_run(case, workload, cluster, folder / f"{case}-{steps}", steps) for steps in (2, 4))
    (_, short_summary), ((row,), summary) = short, long
    if "error" in row:
        raise RuntimeError(f"{case}: {row['error']}")
    compute_ns, kernels = (
        sum(after[name] - before[name] for before, after in zip(short_summary["ranks"], summary["ranks"]))
        / (2 * workload.num_ranks)
        for name in ("compute_ns", "num_kernels")
    )
    # A profiler's kernel times leave out the gap to the next kernel, which a price includes.
    return Figures(
        step_ms=row["step_ms"],
        busy_ms=(compute_ns - kernels * STEP_GAP_NS) / 1e6,
        kernels=kernels,
        allocated_mib=row["max_allocated_mib"],
        reserved_mib=row["max_reserved_mib"],
    )


def memory_in_one_process(workload: Workload, cluster: str, folder: Path) -> dict[str, Figures]:
    """case -> peaks (its times are of no use). RuntimeError as in simulate."""
    printed, _ = _run("all cases in one process", workload, cluster, folder / "all-cases", 2)
    rows = [row for row in printed if "error" not in row]  # such a case fails again by itself, and is named then
    return {
        row["case"]: Figures(
            step_ms=row["step_ms"],
            busy_ms=0,
            kernels=0,
            allocated_mib=row["max_allocated_mib"],
            reserved_mib=row["max_reserved_mib"],
        )
        for row in rows
    }


def _run(
    case: str, workload: Workload, cluster: str, out: Path, steps: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(what the script printed for each case, the run's summary)"""
    command = [
        sys.executable, "-m", "phantora.cli", "record-and-simulate", "--cluster", cluster, "--out", str(out),
        "--nproc-per-node", str(workload.num_ranks), "--ranks-on-terminal", "none", "--no-perfetto", "--no-chakra",
        str(workload.script), *workload.arguments, "--steps", str(steps), "--warmup", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = _printed_rows(out / "logs" / "rank_0" / "stdout.log")
    if done.returncode or not rows:
        raise RuntimeError(f"{case}: no result {done.stdout[-400:]}{done.stderr[-800:]}")
    return rows, json.loads((out / "summary.json").read_text(encoding="utf-8"))


def _printed_rows(log: Path) -> list[dict[str, Any]]:
    """The lines of JSON that the script printed, one for each case."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [json.loads(line) for line in lines if line.startswith('{"case"')]


def table(rows: list[Compared]) -> str:
    """A line for each case (simulated/measured and error), then the checks."""
    head = f"{'case':38} {'bound':5}" + "".join(f" {name:>22}" for name in FIELDS)
    return "\n".join([head, *map(line, rows), "", *map(check_line, checks(rows))])


def line(row: Compared) -> str:
    cells = "".join(
        f" {getattr(row.simulated, f):7.5g}/{getattr(row.measured, f):7.5g} {row.error(f):+6.1%}" for f in FIELDS
    )
    return f"{row.case:38} {row.bound:5}{cells}"


def check_line(check: Check) -> str:
    limits = [
        f"{name} at most {limit:.1%}"
        for name, limit in (("mean", check.mean_limit), ("max", check.max_limit))
        if limit is not None
    ]
    verdict = ("holds: " if check.holds else "EXCEEDED: ") + ", ".join(limits) if limits else "no limit"
    title = f"{check.bound}-bound {check.field}" if check.bound != "all" else check.field
    return f"{title:24} {check.num_cases:2} cases  mean {check.mean:6.1%}  max {check.max:6.1%}  {verdict}"


def parse_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hardware", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="CASE", help="all measured cases when none is named")
    parser.add_argument(
        "--cases", "--measured", type=Path, dest="file", help="measured cases (default: the shared ones)"
    )
    parser.add_argument("--workloads", type=Path, help="the script that has the cases (default: the shared one)")
    parser.add_argument("--own-process", action="store_true", help="each case was measured in a process of its own")
    parser.add_argument("--cluster", default="lab-h200")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--out", type=Path, help="keep the runs here")
    return parser.parse_args(arguments)


def _compare(options: argparse.Namespace, folder: Path) -> Iterable[Compared | str]:
    """For each case what was compared, or why it failed."""
    known = read_cases(options.file or default_cases())
    for name in options.names:
        if name not in known:
            raise UserError(f"case {name} was not measured (measured: {', '.join(known)})")
    chosen = options.names or list(known)
    last = max(list(known).index(case) for case in chosen)
    together = [case for case in list(known)[: last + 1] if is_train_bench_case(case)]
    peaks: dict[str, Figures] = {}
    if len(together) > 1 and not options.own_process:
        try:
            workload = workload_of_all(together, options.workloads)
            peaks = memory_in_one_process(workload, options.cluster, folder)
        except RuntimeError as error:
            yield str(error)
    for case in chosen:
        workload = workload_of(case, options.workloads)
        try:
            figures = simulate(case, workload, options.cluster, folder)
        except RuntimeError as error:
            yield str(error)
            continue
        peak = peaks.get(case, figures)
        figures = dataclasses.replace(figures, allocated_mib=peak.allocated_mib, reserved_mib=peak.reserved_mib)
        yield Compared(case=case, simulated=figures, measured=known[case])


def main(arguments: list[str]) -> int:
    options = parse_options(arguments)
    rows: list[Compared] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for outcome in _compare(options, options.out or Path(temporary)):
            if isinstance(outcome, str):
                failed.append(outcome)
                continue
            rows.append(outcome)
            print(line(outcome), file=sys.stderr if options.json else sys.stdout, flush=True)
    if options.json:
        found = [{**dataclasses.asdict(check), "holds": check.holds} for check in checks(rows)]
        print(json.dumps({"rows": [row.as_dict() for row in rows], "checks": found, "failed": failed}, indent=1))
    else:
        print("\n" + table(rows))
    for text in failed:
        print(f"failed: {text}", file=sys.stderr)
    return 1 if failed or not all(check.holds for check in checks(rows)) else 0
