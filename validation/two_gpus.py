"""Two GPUs of one host: NCCL and training steps, simulated beside measured (validation/data/h200x2).

usage: python -m phantora.validation two-gpus [nccl | steps] [--case CASE ...] [--json]

nccl   time of each collective alone, on the GPU. The constants of phantora/network/constants.py marked [h200x2] were read
       off sizes that are even powers of two, so the errors of odd powers are those of sizes held out.
steps  the scripts of validation/measure/, with the options with which they were measured: step time, peak memory. No
       constant was fitted on them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.cluster import Placement, load_cluster
from phantora.network import CommOperation, exclusive_ns
from phantora.validation.measure.cases import TRAINING

CLUSTER = "lab-h200x2"
HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "h200x2"
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure: what it is of, simulated and measured in the same unit."""

    name: str
    simulated: float
    measured: float
    is_held_out: bool = True

    @property
    def error(self) -> float:
        return self.simulated / self.measured - 1.0


def compare_nccl() -> list[Compared]:
    """Time in us of each kind and size; measured: mean of the runs' medians."""
    measured: dict[tuple[str, int], list[float]] = {}
    for row in json.loads((DATA / "collectives.json").read_text(encoding="utf-8")):
        if row["op"] in KINDS:
            measured.setdefault((row["op"], row["bytes"]), []).append(row["us"])
    cluster = load_cluster(CLUSTER)
    placement = Placement(cluster, 1, 2)
    found = []
    for (kind, num_bytes), times_us in sorted(measured.items()):
        operation = CommOperation(kind=kind, ranks=(0, 1), bytes=num_bytes)  # type: ignore[arg-type]
        simulated_us = exclusive_ns(cluster, placement, operation) / 1000
        is_odd = num_bytes.bit_length() % 2 == 0
        found.append(
            Compared(
                name=f"{kind} {num_bytes}", simulated=simulated_us, measured=statistics.mean(times_us), is_held_out=is_odd
            )
        )
    return found


def measured_steps() -> dict[str, dict[str, float]]:
    """case -> step_ms (mean of the runs' medians), peaks in MiB."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in json.loads((DATA / "training.json").read_text(encoding="utf-8")):
        rows.setdefault(row["case"], []).append(row)
    fields = ("step_ms", "compute_ms", "max_allocated_mib", "max_reserved_mib")
    return {case: {field: statistics.mean(row[field] for row in runs) for field in fields} for case, runs in rows.items()}


def simulated_step(case: str, out: Path) -> dict[str, float]:
    """Run the case's script as it was measured. RuntimeError with the end of the output when that fails."""
    ranks, (script, *options), _ = TRAINING[case]
    command = [
        sys.executable, "-m", "phantora.cli", "record-and-simulate", "--cluster", CLUSTER, "--nproc-per-node", str(ranks),
        "--out", str(out), "--no-perfetto", "--no-chakra", str(HERE / "measure" / script), "--case", case, *options,
        "--steps", "3", "--warmup", "2",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line[line.index('{"case"') :] for line in done.stdout.splitlines() if '{"case"' in line]
    if done.returncode or not lines:
        raise RuntimeError(f"{case}: {done.stdout[-600:]}{done.stderr[-600:]}")
    return json.loads(lines[-1])


def compare_steps(cases: Iterable[str]) -> list[Compared]:
    """Step time in ms and peaks in MiB of each case."""
    known = measured_steps()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            simulated = simulated_step(case, Path(folder) / case)
            for field in ("step_ms", "max_allocated_mib", "max_reserved_mib"):
                row = Compared(name=f"{case} {field}", simulated=simulated[field], measured=known[case][field])
                print(_line(row), file=sys.stderr, flush=True)
                found.append(row)
    return found


def _line(row: Compared) -> str:
    mark = "" if row.is_held_out else "  (constants were read off this size)"
    return f"{row.name:60} {row.simulated:12.2f} {row.measured:12.2f} {row.error:+7.1%}{mark}"


def _summaries(rows: list[Compared]) -> list[str]:
    """Mean and greatest |error| by kind (the first word of a collective, the field of a step), held out and not."""
    lines = []
    kinds = dict.fromkeys(_kind(row) for row in rows)
    for is_held_out in (True, False):
        for kind in [*kinds, "all"]:
            errors = [abs(r.error) for r in rows if r.is_held_out == is_held_out and kind in (_kind(r), "all")]
            if errors:
                title = f"{kind}, {'held out' if is_held_out else 'sizes used'}"
                lines.append(f"{title:60} {len(errors):3} mean {statistics.mean(errors):6.1%} max {max(errors):6.1%}")
    return lines


def _kind(row: Compared) -> str:
    first, last = row.name.split()
    return last if last in ("step_ms", "max_allocated_mib", "max_reserved_mib") else first


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="two-gpus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="nccl, steps (default: both)")
    parser.add_argument("--case", action="append", help="of steps; may be repeated")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    wrong = [what for what in options.what if what not in ("nccl", "steps")]
    unknown = [case for case in options.case or () if case not in measured_steps()]
    if wrong or unknown:
        parser.error(f"{(wrong or unknown)[0]} is not known (cases: {', '.join(measured_steps())})")
    rows: list[Compared] = []
    if not options.what or "nccl" in options.what:
        rows += compare_nccl()
    if not options.what or "steps" in options.what:
        rows += compare_steps(options.case or measured_steps())
    if options.json:
        print(json.dumps([{**{n: getattr(r, n) for n in r.__slots__}, "error": r.error} for r in rows]))
    else:
        print("\n".join([*map(_line, rows), "", *_summaries(rows)]))
    return 0
