"""`python benchmarks/astra_speed.py`: `phantora simulate` with ASTRA-sim's semantics, whole processes, against the
targets.

The workload is made here: a training step of 32 layers, tensor parallel in the first dimension of the network and data
parallel in the second, 160 collectives and 129 compute nodes per NPU, 4 chunks. ASTRA-sim itself (518bd513, CPU s):
28.5 (512 NPUs), 128 (1,024), 36 (direct all-reduce of 64 MB on a Switch of 1,024, congestion-aware).
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from phantora.exporters.chakra_schema import ALL_REDUCE, COMM_COLL_NODE, COMP_NODE, GlobalMetadata, Node

NUM_LAYERS = 32
_TP_BYTES, _DP_BYTES = 16 << 20, 64 << 20


class Step:
    """The nodes of one NPU, as the bytes of its trace."""

    def __init__(self) -> None:
        self._messages = [GlobalMetadata(version="0.0.4").SerializeToString()]
        self._next_id = 1

    def compute(self, name: str, micros: int, parents: list[int]) -> int:
        """A kernel; returns its id."""
        node = Node(id=self._next_id, name=name, type=COMP_NODE, duration_micros=micros, data_deps=parents)
        return self._add(node)

    def all_reduce(
        self, name: str, size: int, parents: list[int], involved: list[bool] | None = None, group: int = 0
    ) -> int:
        """An all-reduce over the involved dimensions, or over a group; returns its id."""
        node = Node(id=self._next_id, name=name, type=COMM_COLL_NODE, data_deps=parents)
        node.attr.add(name="comm_type", int64_val=ALL_REDUCE)
        node.attr.add(name="comm_size", int64_val=size)
        if involved is not None:
            node.attr.add(name="involved_dim").bool_list.values.extend(involved)
        if group:
            node.attr.add(name="pg_name", string_val=str(group))
        return self._add(node)

    def _add(self, node: Node) -> int:
        node.attr.add(name="is_cpu_op", bool_val=False)
        self._messages.append(node.SerializeToString())
        self._next_id += 1
        return node.id

    def trace(self) -> bytes:
        """The file."""
        return b"".join(_varint(len(message)) + message for message in self._messages)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def training_step(tp_group: int = 0, dp_group: int = 0, slow_micros: int = 0) -> bytes:
    """One NPU's step; with groups by their number, else by involved_dim. `slow_micros`: added to each kernel."""
    step = Step()
    tp = {"group": tp_group} if tp_group else {"involved": [True, False]}
    dp = {"group": dp_group} if dp_group else {"involved": [False, True]}
    last: list[int] = []
    for layer in range(NUM_LAYERS):
        for part in ("attention", "mlp"):
            last = [step.compute(f"forward {layer} {part}", 300 + slow_micros, last)]
            last = [step.all_reduce(f"forward {layer} {part} tp", _TP_BYTES, last, **tp)]
    reduced = []
    for layer in reversed(range(NUM_LAYERS)):
        for part in ("mlp", "attention"):
            last = [step.compute(f"backward {layer} {part}", 600 + slow_micros, last)]
            last = [step.all_reduce(f"backward {layer} {part} tp", _TP_BYTES, last, **tp)]
        reduced.append(step.all_reduce(f"gradients {layer}", _DP_BYTES, last, **dp))
    step.compute("optimizer", 2000, [*last, *reduced])
    return step.trace()


def write_step(
    folder: Path, tp: int, dp: int, has_groups: bool = False, straggler_micros: int = 0, most_micros: int = 0
) -> None:
    """Traces and configuration; a straggler is rank 0. most_micros: each rank is slower by a random time below it."""
    groups = {}
    slower = random.Random(1)
    for rank in range(tp * dp):
        tp_group, dp_group = (1 + rank // tp, 1 + dp + rank % tp) if has_groups else (0, 0)
        if has_groups:
            groups.setdefault(tp_group, []).append(rank)
            groups.setdefault(dp_group, []).append(rank)
        slow_micros = (straggler_micros if rank == 0 else 0) + (slower.randrange(most_micros) if most_micros else 0)
        trace = training_step(tp_group, dp_group, slow_micros)
        (folder / f"step.{rank}.et").write_bytes(trace)
    (folder / "groups.json").write_text(json.dumps(groups))
    write_configuration(folder, ["Switch", "Ring"], [tp, dp], [400, 50], [936.25, 1000], "ring", splits=4)


def write_all_reduce(folder: Path, num_npus: int, algorithm: str) -> None:
    """One all-reduce of 64 MB on a Switch."""
    step = Step()
    step.all_reduce("all_reduce", 64 << 20, [])
    for rank in range(num_npus):
        (folder / f"step.{rank}.et").write_bytes(step.trace())
    write_configuration(folder, ["Switch"], [num_npus], [50], [500], algorithm, splits=1)


def write_configuration(
    folder: Path,
    topology: list[str],
    sizes: list[int],
    bandwidth: list[float],
    latency: list[float],
    algorithm: str,
    splits: int,
) -> None:
    """system.json, network.yml and memory.json."""
    system: dict[str, object] = {
        "preferred-dataset-splits": splits,
        "active-chunks-per-dimension": 1,
        "local-mem-bw": 1600,
    }
    system |= {"endpoint-delay": 10, "collective-optimization": "localBWAware", "scheduling-policy": "LIFO"}
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        system[f"{kind}-implementation"] = [algorithm] * len(sizes)
    (folder / "system.json").write_text(json.dumps(system))
    lists = {"topology": topology, "npus_count": sizes, "bandwidth": bandwidth, "latency": latency}
    (folder / "network.yml").write_text("".join(f"{key}: [{', '.join(map(str, v))}]\n" for key, v in lists.items()))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')


def measure(folder: Path, backend: str, has_groups: bool = False) -> tuple[float, float, int]:
    """(CPU s, wall s, last finish in ns) of one `phantora simulate`."""
    command = [sys.executable, "-m", "phantora.cli", "simulate", str(folder / "step"), "--backend", backend, "--json"]
    for option, name in (("system", "system.json"), ("network", "network.yml"), ("memory", "memory.json")):
        command += [f"--astra-{option}", str(folder / name)]
    command += ["--comm-groups", str(folder / "groups.json")] if has_groups else []
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "0"}
    ).stdout
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, wall_s, max(json.loads(output)["finish_ns"].values())


def rows() -> list[tuple[str, str, str]]:
    """(what, target, here) of each measurement; the best of three."""
    found = []
    for what, target, backend, has_groups, write in (
        ("step, TP8 x DP64 = 512 NPUs", "<= 1.5 s", "congestion-unaware", False, lambda f: write_step(f, 8, 64)),
        (
            "the same, by communicator groups",
            "<= 1.5 s",
            "congestion-unaware",
            True,
            lambda f: write_step(f, 8, 64, True),
        ),
        (
            "the same, one NPU 7 us slower per kernel",
            "",
            "congestion-unaware",
            False,
            lambda f: write_step(f, 8, 64, False, 7),
        ),
        (
            "the same by groups, all NPUs 0 to 19 us slower",
            "<= 3 s",
            "congestion-unaware",
            True,
            lambda f: write_step(f, 8, 64, True, 0, 20),
        ),
        ("step, TP8 x DP128 = 1,024 NPUs", "<= 3 s", "congestion-unaware", False, lambda f: write_step(f, 8, 128)),
        (
            "the same, by communicator groups",
            "<= 3 s",
            "congestion-unaware",
            True,
            lambda f: write_step(f, 8, 128, True),
        ),
        (
            "the same by groups, all NPUs 0 to 19 us slower",
            "<= 8 s",
            "congestion-unaware",
            True,
            lambda f: write_step(f, 8, 128, True, 0, 20),
        ),
        (
            "direct all-reduce, 1,024 NPUs",
            "<= 1 s",
            "congestion-aware",
            False,
            lambda f: write_all_reduce(f, 1024, "direct"),
        ),
        (
            "direct all-reduce, 1,024 NPUs",
            "<= 1 s",
            "congestion-unaware",
            False,
            lambda f: write_all_reduce(f, 1024, "direct"),
        ),
    ):
        with tempfile.TemporaryDirectory() as name:
            write(Path(name))
            cpu_s, wall_s, finish_ns = min(measure(Path(name), backend, has_groups) for _ in range(3))
        found.append(
            (f"ASTRA-sim's semantics: {what}, {backend}", target, f"{cpu_s:.2f} CPU {wall_s:.2f} wall ({finish_ns} ns)")
        )
    return found


if __name__ == "__main__":
    for what, target, here in rows():
        print(f"{what:105} {target:>10} {here:>45}", flush=True)
