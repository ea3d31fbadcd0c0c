"""Published NCCL measurements of many machines beside the network model: time, simulated over measured.

usage: python -m phantora.validation nccl [TABLE ...] [--rows] [--json]

The tables lie in validation/data/published_nccl (a file each: source, NCCL's version and machine in its first lines).
Each says which of its rows constants were fitted on, and these tables are marked; the others are held out. A machine is simulated with the preset of its sort as it is: where a table's own network is
slower than the preset's, its first lines say so.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phantora.cluster import Cluster, Placement, load_cluster
from phantora.errors import UserError, nearest
from phantora.network.nccl_tests import run_sweep

DATA = Path(__file__).resolve().parent / "data" / "published_nccl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row of a table."""

    table: str
    nodes: int
    collective: str
    size_bytes: int
    measured_us: float
    simulated_us: float
    algorithm: str

    @property
    def error(self) -> float:
        return self.simulated_us / self.measured_us - 1


def tables() -> list[str]:
    """Names of the tables."""
    return sorted(path.stem for path in DATA.glob("*.csv"))


def heading(table: str) -> list[str]:
    """Source, version, machine: the first lines of a table."""
    lines = (DATA / f"{table}.csv").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# ") for line in lines if line.startswith("#")]


def is_held_out(table: str) -> bool:
    """Whether no constant was fitted on any of its rows."""
    (line,) = [line for line in heading(table) if line.startswith("fitted on these rows: ")]
    return line == "fitted on these rows: nothing"


def compare(table: str) -> Iterator[Compared]:
    """All rows of a table, simulated."""
    lines = (DATA / f"{table}.csv").read_text(encoding="utf-8").splitlines()
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        nodes, size_bytes = int(row["nodes"]), int(row["bytes"])
        placement = Placement(_cluster(row["cluster"], nodes), nodes, int(row["gpus_per_node"]))
        (found,) = run_sweep(
            placement, row["collective"], [size_bytes], gpus_per_process=int(row["gpus_per_process"])
        )
        yield Compared(
            table=table, nodes=nodes, collective=row["collective"], size_bytes=size_bytes,
            measured_us=float(row["time_us"]), simulated_us=found.time_us,
            algorithm=f"{found.algorithm}/{found.protocol}",
        )  # fmt: skip


def _cluster(name: str, num_nodes: int) -> Cluster:
    cluster = load_cluster(name)
    return dataclasses.replace(cluster, num_nodes=max(num_nodes, cluster.num_nodes))


def _summaries(rows: list[Compared]) -> list[str]:
    """Mean and largest error by table and number of nodes."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row.table, row.nodes), []).append(row.error)
    lines = [f"{'table':26}{'nodes':>6}{'rows':>6}{'mean |error|':>14}{'bias':>8}{'largest':>9}  status"]
    for (table, nodes), errors in groups.items():
        mean, bias = statistics.mean(map(abs, errors)), statistics.mean(errors)
        most = max(errors, key=abs)
        status = "  held out" if is_held_out(table) else "  FITTED"
        lines.append(f"{table:26}{nodes:>6}{len(errors):>6}{mean:>14.1%}{bias:>+8.1%}{most:>+9.1%}{status}")
    held_out = [abs(row.error) for row in rows if is_held_out(row.table)]
    if held_out:
        lines.append(f"held out: {len(held_out)} rows, mean |error| {statistics.mean(held_out):.1%}")
    return lines


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="nccl", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", nargs="*", help=f"default: all ({', '.join(tables())})")
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    for table in options.table:
        if table not in tables():
            raise UserError(f"{table}: no such table{nearest(table, tables())}")
    rows = [row for table in options.table or tables() for row in compare(table)]
    if options.json:
        print(json.dumps([{**dataclasses.asdict(row), "error": row.error} for row in rows]))
        return 0
    if options.rows:
        for row in rows:
            size = f"{row.nodes} nodes {row.collective} {row.size_bytes}"
            times = f"{row.simulated_us:>11.1f}{row.measured_us:>11.1f} us {row.error:>+7.1%}"
            print(f"{row.table:26}{size:36}{times}  {row.algorithm}")
        for table in options.table or tables():
            print(f"{table}: {'; '.join(heading(table))}")
    print("\n".join(_summaries(rows)))
    return 0
