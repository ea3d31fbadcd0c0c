"""Time of offline replays, whole process: `python benchmarks/replay.py`. Run it on a quiet machine.

Two cases: 8 recorded ranks of 20,000 rows each (a made-up trace in the shape of a recorded one: streams, events,
collectives, waits of the host), and 512 ranks of 289 Chakra nodes each, as generators for ASTRA-sim write them (32
layers, TP 8 x DP 64).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phantora.exporters import chakra_schema as schema
from phantora.exporters.chakra import write_chakra
from phantora.exporters.protobuf_rows import varint

from phantora.cluster import load_cluster
from phantora.trace.model import CollectiveInfo, GroupInfo, RankTrace, Run, SignatureInfo

NUM_LAYERS, TP, DP = 32, 8, 64
MIB = 1 << 20


def recorded_run(num_ranks: int = 8, num_rows: int = 20_000) -> Run:
    """Rows in turn: 18 kernels, a collective on another stream, a kernel that waits for it; a host wait every 1,000."""
    world = tuple(range(num_ranks))
    run = Run(["made up"], load_cluster("dgx-h100"), num_ranks, num_ranks, groups=[GroupInfo("world", world)])
    run.signatures = [SignatureInfo(f"op{i}", (), (), 5_000 + 700 * i, 1, "measured", 0, 0, "gemm") for i in range(18)]
    for k in range(num_rows // 20):
        run.collectives.append(CollectiveInfo("all_reduce", 0, world, (k % 7 + 1) * MIB, "bfloat16"))
    run.ranks = [_rank(rank, num_rows) for rank in world]
    return run


def _rank(rank: int, num_rows: int) -> RankTrace:
    trace = RankTrace(rank)
    for row in range(num_rows):
        is_collective = row % 20 == 18
        trace.device.append(0)
        trace.stream.append(7 if is_collective else 0)
        trace.issue_ns.append(5_000 * (row + 1))
        trace.thread.append(0)
        trace.start_ns.append(-1)
        trace.end_ns.append(-1)
        if is_collective:
            trace.work_collectives.append((row // 20,))
        trace.signature.append(-len(trace.work_collectives) if is_collective else row % 18)
        if row % 20 in (18, 19):
            trace.dependent.append(row)
            trace.dependency.append(row - 1)
        if row % 1000 == 999:
            for name, value in (
                ("begin_ns", trace.issue_ns[-1]),
                ("end_ns", trace.issue_ns[-1]),
                ("position", row + 1),
                ("thread", 0),
                ("delay_ns", 0),
            ):
                getattr(trace, f"wait_{name}").append(value)
            trace.wait_reason.append("stream")
            trace.wait_rows.append((row,))
            trace.wait_peers.append(())
    trace.host_end_ns = trace.issue_ns[-1]
    return trace


def write_step(folder: Path) -> Path:
    """A training step, one file per NPU: returns the prefix."""
    groups = {str(1 + i): list(range(i * TP, (i + 1) * TP)) for i in range(DP)}
    groups |= {str(1 + DP + i): list(range(i, TP * DP, TP)) for i in range(TP)}
    (folder / "comm_groups.json").write_text(json.dumps(groups))
    for rank in range(TP * DP):
        nodes = _step_nodes(str(1 + rank // TP), str(1 + DP + rank % TP))
        frames = [
            schema.GlobalMetadata(version="0.0.4").SerializeToString(),
            *(node.SerializeToString() for node in nodes),
        ]
        (folder / f"step.{rank}.et").write_bytes(b"".join(varint(len(frame)) + frame for frame in frames))
    return folder / "step"


def _step_nodes(tensor_group: str, data_group: str) -> list[schema.Node]:
    nodes: list[schema.Node] = []

    def add(kind: int, name: str, deps: list[int], micros: int = 0, size: int = 0, group: str = "") -> int:
        node = schema.Node(id=len(nodes) + 1, name=name, type=kind, data_deps=deps, duration_micros=micros)
        node.attr.add(name="is_cpu_op", bool_val=False)
        if size:
            node.attr.add(name="comm_type", int64_val=schema.ALL_REDUCE)
            node.attr.add(name="comm_size", int64_val=size)
            node.attr.add(name="pg_name", string_val=group)
        nodes.append(node)
        return node.id

    last: list[int] = []
    for _ in range(NUM_LAYERS):
        for half in ("attention", "mlp"):
            last = [add(schema.COMP_NODE, half, last, 400)]
            last = [add(schema.COMM_COLL_NODE, "tp", last, 0, 32 * MIB, tensor_group)]
    reduced = []
    for _ in range(NUM_LAYERS):
        for half in ("attention backward", "mlp backward"):
            last = [add(schema.COMP_NODE, half, last, 800)]
            last = [add(schema.COMM_COLL_NODE, "tp", last, 0, 32 * MIB, tensor_group)]
        reduced.append(add(schema.COMM_COLL_NODE, "dp", last, 0, 50 * MIB, data_group))
    add(schema.COMP_NODE, "optimizer", [*last, *reduced], 2_000)
    return nodes


def timed(workload: Path, *options: str) -> tuple[float, float]:
    """(seconds of the whole process, virtual ms)."""
    command = [sys.executable, "-m", "phantora.cli", "simulate", str(workload), "--json", *options]
    started = time.perf_counter()
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return time.perf_counter() - started, json.loads(out)["virtual_ns"] / 1e6


def main() -> None:
    """Print both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "step").mkdir()
        recorded = write_chakra(replayed(recorded_run()), folder)
        print(
            "8 ranks x 20,000 rows, recorded: {:.2f} s ({:.1f} ms of virtual time)".format(*timed(recorded / "trace"))
        )
        prefix = write_step(folder / "step")
        print(
            "512 NPUs x 289 nodes of Chakra:  {:.2f} s ({:.1f} ms of virtual time)".format(
                *timed(prefix, "--cluster", str(_cluster(folder)))
            )
        )


def replayed(run: Run) -> Run:
    """With times, so that it can be written."""
    from phantora.replay import replay

    result = replay(run, run.cluster)  # type: ignore[arg-type]
    result.source = "recorded"
    return result


def _cluster(folder: Path) -> Path:
    path = folder / "big.toml"
    path.write_text('base = "dgx-h100"\nnum_nodes = 64\n')
    return path


if __name__ == "__main__":
    main()
