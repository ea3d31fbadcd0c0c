"""Compares simulated operator times with profiled training steps.

usage: python -m phantora.validation.compute_profiles FOLDER [--cluster lab-h200] [--worst 10]

FOLDER holds profiles/<case>.ops.json (operators with input shapes, without dtypes) and traces/<case>.kineto.json.gz
(operators with shapes, strides and dtypes, and every kernel). Kineto traces are exact; for the others dtypes, strides
and the dimensions of reductions are inferred from what the case is, so single rows may be wrong.

Profilers time kernels without the gap to the next one; a price includes it (roof.STEP_GAP_NS per kernel), so it is
taken off before comparing.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from phantora.validation.profile_rows import Row, kineto_rows, ops_rows

from phantora.cluster.loader import load_cluster
from phantora.compute import OpCall, Pricer
from phantora.compute.roof import STEP_GAP_NS


@dataclass(slots=True)
class Comparison:
    """Sums of one case."""

    rows: list[tuple[float, float, Row, str]]
    unpriced_ns: float
    unpriced: list[str]

    def by_family(self) -> dict[str, tuple[float, float]]:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for simulated, measured, _, family in self.rows:
            sums[family][0] += simulated
            sums[family][1] += measured
        return {family: (s, m) for family, (s, m) in sorted(sums.items(), key=lambda item: -item[1][1])}


def compare(rows: Iterable[Row], pricer: Pricer) -> Comparison:
    """Simulated and measured kernel time of each row."""
    result = Comparison([], 0.0, [])
    for row in rows:
        if not row.calls:
            result.unpriced_ns += row.measured_ns
            result.unpriced.append(row.op)
            continue
        simulated, family = 0.0, ""
        for call, share in row.calls:
            price = pricer.price(call)
            own = (
                price.duration_ns
                - STEP_GAP_NS * price.num_kernels
                - (_zeros_ns(call, pricer) if row.zeros_apart else 0)
            )
            simulated += max(own, 300 * price.num_kernels) * share * row.count
            family = price.family
        result.rows.append((simulated, row.measured_ns, row, family))
    return result


def _zeros_ns(call: OpCall, pricer: Pricer) -> int:
    return pricer.price(OpCall("aten::zero_", args=(("self", call.outputs[0]),), outputs=call.outputs)).duration_ns


def report(case: str, result: Comparison, worst: int) -> str:
    simulated, measured = sum(r[0] for r in result.rows), sum(r[1] for r in result.rows)
    lines = [
        f"== {case}: simulated {simulated / 1e6:.2f} ms, measured {measured / 1e6:.2f} ms "
        f"({simulated / measured - 1:+.1%}); "
        f"not compared {result.unpriced_ns / 1e6:.2f} ms"
    ]
    lines += [
        f"   {family:14s} {s / 1e6:9.2f} {m / 1e6:9.2f} ms {s / m - 1:+7.1%}"
        for family, (s, m) in result.by_family().items()
    ]
    lines.append("   not compared: " + (", ".join(result.unpriced) or "nothing"))
    lines.append("   worst rows (simulated us, measured us per call, count):")
    for s, m, row, _ in sorted(result.rows, key=lambda r: -abs(r[0] - r[1]))[:worst]:
        lines.append(f"   {s / row.count / 1e3:9.1f} {m / row.count / 1e3:9.1f} x{row.count:<4d} {row.op} {row.shapes}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", default="lab-h200")
    parser.add_argument("--worst", type=int, default=10)
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    pricer = Pricer(cluster.gpu, cluster.host)
    params = {}
    for line in (options.folder / "models.jsonl").read_text(encoding="utf-8").splitlines():
        params[json.loads(line)["case"]] = json.loads(line)["params"]
    for path in sorted((options.folder / "traces").glob("*.kineto.json.gz")):
        print(
            report(
                path.name.removesuffix(".json.gz"),
                compare(kineto_rows(path, params[path.name.removesuffix(".kineto.json.gz")]), pricer),
                options.worst,
            )
        )
    for path in sorted((options.folder / "profiles").glob("*.ops.json")):
        case = path.name.removesuffix(".ops.json")
        print(report(case, compare(ops_rows(path, params[case]), pricer), options.worst))


if __name__ == "__main__":
    main()
