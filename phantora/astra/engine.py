"""The event-by-event simulation: every message of every NPU. What the faster ways must agree with."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from phantora.astra.clock import Action, Batches
from phantora.astra.config import Memory
from phantora.astra.custom import CustomTraces
from phantora.astra.network import Network
from phantora.astra.npu import Npu
from phantora.astra.plan import Collective, Planner
from phantora.astra.program import Program
from phantora.astra.streams import Streams
from phantora.errors import UserError

_SHOWN = 6


class RemoteMemory:
    """Accesses take latency + bytes / rate; NPUs that share a queue wait for each other.

    Source: astra-sim, remote_memory_backend/analytical/AnalyticalRemoteMemory.cc.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._waiting: dict[int, deque[tuple[Npu, int, Action]]] = {}

    def start(self, npu: Npu, size_bytes: int, done: Action) -> None:
        """done(None) at its end."""
        memory = self._memory
        if not memory.exists:
            raise UserError("a memory access, but the memory configuration says NO_MEMORY_EXPANSION")
        if not memory.npus_per_queue:
            npu.batches.after(memory.access_ns(size_bytes), done, None)
            return
        queue = npu.rank // memory.npus_per_queue
        if queue in self._waiting:
            self._waiting[queue].append((npu, size_bytes, done))
        else:
            self._waiting[queue] = deque()
            self._run(queue, npu, size_bytes, done)

    def _run(self, queue: int, npu: Npu, size_bytes: int, done: Action) -> None:
        duration_ns = self._memory.access_ns(size_bytes)
        npu.batches.after(duration_ns, done, None)
        npu.batches.after(duration_ns, self._next, queue)

    def _next(self, queue: int) -> None:
        if self._waiting[queue]:
            self._run(queue, *self._waiting[queue].popleft())
        else:
            del self._waiting[queue]


class Engine:
    """All NPUs, one clock, one network."""

    def __init__(self, programs: Sequence[Program], planner: Planner, network: Network, memory: Memory) -> None:
        self.network, self.planner = network, planner
        self.num_npus = planner.shape.num_npus
        clock = network.clock
        self.npus = [Npu(rank, program, Batches(clock), self) for rank, program in enumerate(programs)]
        custom = CustomTraces()
        self.streams = [Streams(npu.rank, npu.batches, network, planner, custom) for npu in self.npus]
        self._memory = RemoteMemory(memory)

    def start_collective(self, npu: Npu, collective: Collective, done: Action) -> None:
        """See `npu.Surroundings`."""
        check_member(self.planner, collective, npu.rank)
        self.streams[npu.rank].start(collective, done)

    def start_access(self, npu: Npu, size_bytes: int, done: Action) -> None:
        """See `npu.Surroundings`."""
        self._memory.start(npu, size_bytes, done)

    def run(self) -> list[int]:
        """When each NPU has finished, in ns. UserError if one never does."""
        for npu in self.npus:
            npu.start()
        self.network.clock.run()
        return finish_times(self.npus)


def check_member(planner: Planner, collective: Collective, rank: int) -> None:
    """UserError if a group is unknown, or a rank uses one that it is not in."""
    if collective.group:
        ranks = planner.groups.get(collective.group)
        if ranks is None:
            known = ", ".join(map(str, sorted(planner.groups)[:10])) or "none; give --comm-groups"
            raise UserError(f"communicator group {collective.group} is not defined (known: {known})")
        if rank not in ranks:
            raise UserError(f"not a member of its communicator group {collective.group}")


def finish_times(npus: Sequence[Npu]) -> list[int]:
    """Of NPUs on which nothing happens any more. UserError if one has not finished."""
    stuck = [npu for npu in npus if npu.finished_ns < 0]
    if stuck:
        lines = [npu.complaint() for npu in stuck[:_SHOWN]]
        more = f"; and {len(stuck) - _SHOWN} more" if len(stuck) > _SHOWN else ""
        raise UserError(f"deadlock: {len(stuck)} of {len(npus)} NPUs never finish: {'; '.join(lines)}{more}")
    return [npu.finished_ns for npu in npus]
