"""The workload layer of one NPU: which node starts when.

When a node ends, the ready nodes are looked through in ascending id, and those whose unit is free start at that
instant. Source: astra-sim, Workload::{call, issue_dep_free_nodes, issue} and HardwareResource.cc.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Protocol

from phantora.astra.clock import Action, Batches
from phantora.astra.config import COLLECTIVES
from phantora.astra.network import Network
from phantora.astra.plan import Collective
from phantora.astra.program import (
    COLLECTIVE,
    MEMORY,
    RECEIVE,
    RECEIVES,
    SEND,
    SKIP,
    WAIT,
    Operation,
    Program,
)
from phantora.errors import UserError


class NodeError(UserError):
    """A node that cannot be executed; names rank and node."""


class Surroundings(Protocol):
    """What an NPU shares with the others."""

    network: Network
    num_npus: int

    def start_collective(self, npu: Npu, collective: Collective, done: Action) -> None:
        """done(None) when it is over on this NPU."""

    def start_access(self, npu: Npu, size_bytes: int, done: Action) -> None:
        """done(None) when remote memory has been read or written."""


class Npu:
    """Executes a program."""

    __slots__ = (
        "rank", "program", "batches", "around", "finished_ns", "running", "is_watched", "_left", "_ready",
        "_busy", "_freed", "_tie_ns", "_tied",
    )  # fmt: skip

    def __init__(
        self, rank: int, program: Program, batches: Batches, around: Surroundings, is_watched: bool = False
    ) -> None:
        self.rank, self.program, self.batches, self.around = rank, program, batches, around
        self.finished_ns = -1
        self.running: dict[int, Operation] = {}
        """index -> operation, in order of their starts"""
        self.is_watched = is_watched
        """whether ends at one time whose order is in doubt are counted (`Clock.num_doubts`)"""
        self._tie_ns = -1
        self._tied: list[tuple[int, int, bool]] = []
        self._left = list(program.structure.num_parents)
        self._ready: tuple[list[int], ...] = ([], [], [], [])
        self._busy = [False] * 4
        self._freed: list[int] = []
        for i, count in enumerate(self._left):
            if not count:
                self._ready[program.operations[i].unit].append(i)

    def start(self) -> None:
        """At time 0."""
        self._start_ready()
        self._check_end()

    def _ended(self, index: int) -> None:
        if self.finished_ns >= 0:
            return
        operation = self.running[index]
        self._release(index)
        if self.is_watched:
            self._watch(operation)
        self._make_ready()
        self._start_ready()
        self._check_end()

    def _watch(self, ended: Operation) -> None:
        """Two ends at one time may stand in another order than in ASTRA-sim, unless both were entered among the NPU's
        own events at different times. That does not matter if they have no unit in common: neither the one freed nor
        those of nodes made ready.
        """
        now_ns, is_own = self.batches.clock.now_ns, ended.kind not in (SEND, RECEIVE)
        if now_ns != self._tie_ns:
            self._tie_ns, self._tied = now_ns, []
        entered_ns = self.batches.entered_ns if is_own else -1
        is_whole = ended.kind == COLLECTIVE
        units = 1 << ended.unit
        for child in self._freed:
            units |= 1 << self.program.operations[child].unit
        units &= ~(1 << RECEIVES)
        for other_ns, others, other_is_whole in self._tied:
            is_certain = min(other_ns, entered_ns) >= 0 and (other_ns != entered_ns or not (is_whole or other_is_whole))
            if units & others and not is_certain:
                self.batches.clock.num_doubts += 1
        self._tied.append((entered_ns, units, is_whole))

    def _release(self, index: int) -> None:
        operation = self.running.pop(index)
        self._busy[operation.unit] = False
        left = self._left
        for child in self.program.structure.children[index]:
            left[child] -= 1
            if not left[child]:
                self._freed.append(child)

    def _make_ready(self) -> None:
        for child in self._freed:
            heappush(self._ready[self.program.operations[child].unit], child)
        self._freed.clear()

    def _start_ready(self) -> None:
        """One pass in ascending id; what becomes ready meanwhile waits for the next pass."""
        ready, busy = self._ready, self._busy
        while True:
            best = None
            for unit in range(4):
                if ready[unit] and not busy[unit] and (best is None or ready[unit][0] < best[0]):
                    best = ready[unit]
            if best is None:
                break
            self._start_one(heappop(best))
        self._make_ready()

    def _start_one(self, index: int) -> None:
        operation = self.program.operations[index]
        kind = operation.kind
        self.running[index] = operation
        if operation.unit != RECEIVES:
            self._busy[operation.unit] = True
        if kind == WAIT:
            self.batches.after(operation.wait_ns, self._ended, index)
        elif kind == COLLECTIVE:
            assert operation.collective is not None
            self._guarded(operation, self._start_collective, index)
        elif kind == SKIP:
            self._release(index)
        else:
            self._guarded(operation, self._start_other, index)

    def _guarded(self, operation: Operation, start: Action, index: int) -> None:
        try:
            start(index)
        except NodeError:
            raise
        except UserError as error:
            raise NodeError(f"rank {self.rank}, node {operation.id}: {error}") from None

    def _start_collective(self, index: int) -> None:
        collective = self.program.operations[index].collective
        assert collective is not None
        self.around.start_collective(self, collective, lambda _: self._ended(index))

    def _start_other(self, index: int) -> None:
        operation = self.program.operations[index]
        if operation.kind == MEMORY:
            self.around.start_access(self, operation.size, lambda _: self._ended(index))
            return
        source, target = (self.rank if end < 0 else end for end in (operation.source, operation.target))
        self._check_ends(operation, source, target)
        network = self.around.network
        if operation.kind == SEND:
            network.send(source, target, operation.size, operation.tag, self._ended, index)
        else:
            network.receive(target, source, operation.size, operation.tag, self._ended, index)

    def _check_ends(self, operation: Operation, source: int, target: int) -> None:
        own, peer, name = (source, target, "comm_src") if operation.kind == SEND else (target, source, "comm_dst")
        if own != self.rank:
            raise UserError(f"{name} is {own}, not the rank itself")
        if peer == self.rank:
            raise UserError("a message to oneself, on which ASTRA-sim aborts")
        if peer >= self.around.num_npus:
            raise UserError(f"rank {peer} is not among the {self.around.num_npus} NPUs")

    def _check_end(self) -> None:
        if not self.running and not any(self._ready):
            self.finished_ns = self.batches.clock.now_ns

    def complaint(self) -> str:
        """What an NPU that does not end is waiting for."""
        waits = [f"node {operation.id} ({describe(operation, self.rank)})" for operation in self.running.values()]
        if not waits:
            ids = sorted(self.program.operations[i].id for of_unit in self._ready for i in of_unit)
            waits = [f"node {ids[0]} is ready, but nothing happens any more that would make ASTRA-sim look at it"]
        return f"rank {self.rank}: " + ", ".join(waits[:4]) + (", ..." if len(waits) > 4 else "")


def describe(operation: Operation, rank: int) -> str:
    """A node in words."""
    if operation.kind == RECEIVE:
        return f"receive of {operation.size} B from rank {operation.source}, tag {operation.tag}"
    if operation.kind == SEND:
        return f"send of {operation.size} B to rank {operation.target}, tag {operation.tag}"
    if operation.collective is not None:
        where = f"group {operation.collective.group}" if operation.collective.group else "all ranks"
        return f"{COLLECTIVES[operation.collective.kind]} of {operation.size} B, {where}"
    return "remote memory" if operation.kind == MEMORY else "computing"
