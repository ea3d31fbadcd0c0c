"""A Simulation driven by hand: no sockets, no processes, and a network in which every operation takes the same time."""

from __future__ import annotations

import itertools
from typing import Any

from phantora.engine.protocol import RECORD, Kind
from phantora.engine.simulation import Simulation
from phantora.network.contention import ContentionModel
from phantora.network.operation import CommOperation


class FixedNetwork:
    """Every operation takes `duration_ns`, times its slowdown."""

    def __init__(self, duration_ns: int) -> None:
        self.duration_ns = duration_ns
        self.ends: dict[int, int] = {}

    def begin(self, key: int, operation: CommOperation, now_ns: int, slowdown: float = 1.0) -> None:
        self.ends[key] = now_ns + round(self.duration_ns * slowdown)

    def next_ns(self) -> int | None:
        return min(self.ends.values(), default=None)

    def advance(self, now_ns: int) -> list[int]:
        done = [key for key, end in self.ends.items() if end == now_ns]
        for key in done:
            del self.ends[key]
        return done


class Harness:
    """Drives a Simulation as ranks would, by hand."""

    def __init__(self, world_size: int, duration_ns: int = 1000, contention: ContentionModel | None = None) -> None:
        self.replies: list[tuple[int, dict[str, Any]]] = []
        reply = lambda rank, message: self.replies.append((rank, message))  # noqa: E731
        self.simulation = Simulation(world_size, FixedNetwork(duration_ns), reply, contention)
        self.ids = itertools.count()
        for rank in range(world_size):
            self.simulation.hello(rank)
            self.simulation.stack(rank, {"id": 0, "text": f'  File "train.py", line {rank}, in main'})

    def signature(self, rank: int, number: int, duration_ns: int) -> None:
        self.simulation.signature(
            rank,
            dict(id=number, name=f"op{duration_ns}", inputs=[], outputs=[], duration_ns=duration_ns, num_kernels=1, source="roofline", flops=0, bytes=0, family="x"),
        )

    def record(self, rank: int, kind: Kind, host_ns: int, a: int = 0, b: int = 0, c: int = 0) -> None:
        self.simulation.records(rank, RECORD.pack(kind, 0, 0, host_ns, a, b, c))

    def collective(self, rank: int, host_ns: int, seq: int, stream: int = 1, ranks: tuple[int, ...] | None = None, **part: Any) -> None:
        ranks = ranks or tuple(range(len(self.simulation.ranks)))
        fields = dict(kind="all_reduce", seq=seq, bytes=1024, dtype="float32", count=256, root=0, reduce_op="SUM")
        number = next(self.ids)
        self.simulation.collective(rank, {"id": number, "group": "0", "ranks": ranks, "stack": 0, "parts": [{**fields, **part}]})
        self.record(rank, Kind.COLLECTIVE, host_ns, number, stream)

    def call(self, rank: int, method: str, clock_ns: int, **fields: Any) -> int:
        number = next(self.ids)
        self.simulation.call(rank, dict(id=number, method=method, clock_ns=clock_ns, main=True, stack=0, **fields))
        return number

    def end(self, rank: int) -> None:
        self.simulation.note(rank, dict(method="finish", clock_ns=0, exit_code=0, error=None, stand_ins={}, remarks=[]))
        self.simulation.ended(rank)
