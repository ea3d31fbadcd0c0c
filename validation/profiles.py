"""Operator times of simulated training steps beside profiled ones, operator by operator.

usage: python -m phantora.validation profiles [CASE ...] --workloads train_bench.py --reference FOLDER
       [--cluster lab-h200] [--worst 8] [--out DIR]

FOLDER holds profiles/<case>.ops.json (aten operator, input shapes, count, device us of one step). Each case is run twice
under `phantora record-and-simulate`, with one and with two steps: the operators of the difference are those of a step,
with their exact shapes, strides and dtypes. Rows of equal operator and input shapes are compared; the weighted error is

    sum of |simulated - measured| over all rows / sum of measured,

rows that only one side has counted whole. Names that differ between versions of torch, or between an operator and the
one that a profiler names for its kernels, are made equal first (profile_keys).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from phantora.validation.profile_keys import Key, measured_rows, simulated_rows

from phantora.cluster.loader import load_cluster
from phantora.compute import Pricer

_STEPS = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One case: operator and shapes -> (simulated, measured) ns in a step."""

    case: str
    rows: dict[Key, tuple[float, float]]

    @property
    def simulated_ns(self) -> float:
        return sum(simulated for simulated, _ in self.rows.values())

    @property
    def measured_ns(self) -> float:
        return sum(measured for _, measured in self.rows.values())

    @property
    def differing_ns(self) -> float:
        """Sum of |simulated - measured| over the rows."""
        return sum(abs(simulated - measured) for simulated, measured in self.rows.values())

    @property
    def unmatched_ns(self) -> float:
        """Measured time of rows that the simulation does not have."""
        return sum(measured for simulated, measured in self.rows.values() if not simulated)


def step_of(case: str, profile: Path, runs: tuple[Path, Path], pricer: Pricer) -> Step:
    """Compares a profile with the operators of two runs that differ by one step."""
    simulated, measured = simulated_rows(*runs, pricer), measured_rows(profile)
    keys = sorted(simulated.keys() | measured.keys())
    return Step(case=case, rows={key: (simulated.get(key, 0.0), measured.get(key, 0.0)) for key in keys})


def run(case: str, workloads: Path, cluster: str, folder: Path, steps: int) -> Path:
    """A run of `case` with `steps` steps. RuntimeError with the end of the output when it fails."""
    out = folder / f"{case}-{steps}"
    command = [
        sys.executable, "-m", "phantora.cli", "record-and-simulate", "--cluster", cluster, "--out", str(out),
        "--ranks-on-terminal", "none", "--no-perfetto", "--no-chakra", str(workloads), "--case", case, "--steps",
        str(steps), "--warmup", "1", "--out", str(folder / f"{case}-{steps}.jsonl"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (out / "operators.jsonl").is_file():
        raise RuntimeError(f"{case}: {done.stdout[-400:]}{done.stderr[-800:]}")
    return out


def line(title: str, simulated_ns: float, measured_ns: float, differing_ns: float, unmatched_ns: float) -> str:
    return (
        f"{title:36} simulated {simulated_ns / 1e6:8.2f} ms  measured {measured_ns / 1e6:8.2f} ms "
        f"{simulated_ns / measured_ns - 1:+6.1%}  weighted error {differing_ns / measured_ns:5.1%}  "
        f"not simulated {unmatched_ns / measured_ns:5.1%}"
    )


def report(step: Step, worst: int) -> str:
    """A line for the case and its rows that differ most."""
    lines = [line(step.case, step.simulated_ns, step.measured_ns, step.differing_ns, step.unmatched_ns)]
    ranked = sorted(step.rows.items(), key=lambda item: (-abs(item[1][0] - item[1][1]), item[0]))
    for (name, shapes), (simulated, measured) in ranked[:worst]:
        share = (simulated - measured) / step.measured_ns
        text = " ".join("x".join(map(str, shape)) for shape in shapes)
        lines.append(f"  {share:+6.2%} {simulated / 1e3:9.0f} {measured / 1e3:9.0f} us  {name} {text[:90]}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="profiles", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="all profiled cases when none is named")
    parser.add_argument("--workloads", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--cluster", default="lab-h200")
    parser.add_argument("--worst", type=int, default=8)
    parser.add_argument("--out", type=Path, help="keep the runs here; those that are here are not run again")
    options = parser.parse_args(arguments)
    profiles = {path.name.removesuffix(".ops.json"): path for path in (options.reference / "profiles").glob("*.ops.json")}
    known = sorted(case for case in profiles if not case.startswith("compiled-"))
    wrong = [case for case in options.cases if case not in known]
    if wrong or not known:
        parser.error(f"{wrong[0] if wrong else options.reference}: no profile (there are: {', '.join(known)})")
    cluster = load_cluster(options.cluster)
    pricer, steps, failed = Pricer(cluster.gpu, cluster.host), [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        for case in options.cases or known:
            try:
                runs = [_kept(case, options, folder, count) for count in _STEPS]
            except RuntimeError as error:
                print(f"failed: {error}", file=sys.stderr)
                failed += 1
                continue
            steps.append(step_of(case, profiles[case], (runs[0], runs[1]), pricer))
            print(report(steps[-1], options.worst), flush=True)
    if steps:
        sums = [sum(getattr(step, name) for step in steps) for name in ("simulated_ns", "measured_ns", "differing_ns", "unmatched_ns")]
        print("\n" + line(f"all {len(steps)} cases", *sums))
        print(f"mean weighted error of the cases: {sum(s.differing_ns / s.measured_ns for s in steps) / len(steps):.1%}")
    return 1 if failed else 0


def _kept(case: str, options: argparse.Namespace, folder: Path, steps: int) -> Path:
    kept = folder / f"{case}-{steps}"
    if (kept / "operators.jsonl").is_file():
        return kept
    return run(case, options.workloads, options.cluster, folder, steps)
