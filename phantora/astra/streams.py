"""The system layer of one NPU: the chunks of its collective wait in queues, and some of each queue run at once.

Source: astra-sim, Sys::{insert_stream, schedule, proceed_to_next_vnet_baseline} and Sys::SchedulerUnit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phantora.astra.clock import Action, Batches
from phantora.astra.config import System
from phantora.astra.custom import CustomPhase, CustomTraces
from phantora.astra.network import Network
from phantora.astra.plan import Allocators, Collective, Phase, Planner

_LOCAL_DELAY_NS = 10  # MemBus.cc: groups do not see endpoint-delay
_COLLECTIVE_TAG, _TAGS, _GROUP_TAGS = 500_000_000, 500_000_000, 1_000_000


def bus_ns(system: System, is_local: bool) -> int:
    """How long a packet is on the memory bus; is_local: of a group's collective."""
    return _LOCAL_DELAY_NS if is_local else system.endpoint_delay_ns


def reduction_ns(system: System, size_bytes: int) -> int:
    """Two reads and a write of local memory. Source: PacketBundle::call."""
    rate = system.local_mem_bytes_per_ns
    return 3 * int(size_bytes / rate) if rate else 0


class Stream:
    """One chunk on its way through its phases. It is the `Port` of its algorithm."""

    __slots__ = ("owner", "tag", "phases", "next_phase", "algorithm", "entered_ns", "done")

    def __init__(self, owner: Streams, tag: int, phases: Sequence[Phase | CustomPhase], done: Action) -> None:
        self.owner, self.tag, self.phases, self.done = owner, tag, phases, done
        self.next_phase = 0
        self.algorithm: Any = None
        self.entered_ns = -1
        """when it came into the queue of a later phase than the first"""

    def send(self, target: int, size: int) -> None:
        """See `algorithms.Port`."""
        self.owner.network.send(self.owner.rank, target, size, self.tag, None, None)

    def receive(self, source: int, size: int, received: Action) -> None:
        """See `algorithms.Port`."""
        self.owner.network.receive(self.owner.rank, source, size, self.tag, received, None)

    def bus(self, is_local: bool, action: Action, size: int) -> None:
        """See `algorithms.Port`."""
        self.owner.batches.after(bus_ns(self.owner.planner.system, is_local), action, size)

    def reduce(self, size: int, action: Action) -> None:
        """See `algorithms.Port`."""
        self.owner.batches.after(reduction_ns(self.owner.planner.system, size), action, -1)

    def finished(self) -> None:
        """See `algorithms.Port`."""
        self.owner.proceed(self)

    def now_ns(self) -> int:
        """See `algorithms.Port`."""
        return self.owner.batches.clock.now_ns

    def doubt(self) -> None:
        """See `algorithms.Port`."""
        self.owner.batches.clock.num_doubts += 1


class Tags:
    """Numbers the chunks of one NPU: of the world count all its chunks, of a group those of the group."""

    __slots__ = ("_of_world", "_of_group")

    def __init__(self) -> None:
        self._of_world = 0
        self._of_group: dict[int, int] = {}

    def take(self, group: int, count: int) -> int:
        """The tag of the first of the next `count` chunks."""
        number = self._of_world
        self._of_world += count
        if group:
            number = self._of_group.get(group, group * _GROUP_TAGS)
            self._of_group[group] = number + count
        return number % _TAGS + _COLLECTIVE_TAG


class Streams:
    """Of one NPU."""

    def __init__(
        self, rank: int, batches: Batches, network: Network, planner: Planner, custom: CustomTraces | None = None
    ) -> None:
        self._custom = custom
        self.rank, self.batches, self.network, self.planner = rank, batches, network, planner
        system, num_queues = planner.system, planner.num_queues
        self.allocators = Allocators(len(planner.shape.dims), num_queues)
        self._width = -(-system.active_chunks // num_queues)
        self._queues: list[list[Stream]] = [[] for _ in range(num_queues * len(planner.shape.dims))]
        self._num_running = [0] * len(self._queues)
        self._last_start = [(-1, -1)] * len(self._queues)
        self._tags = Tags()

    def start(self, collective: Collective, done: Action) -> None:
        """done(None) when all chunks have passed all their phases."""
        if collective.custom:
            custom = [self._custom_phase(collective)]
            self.proceed(Stream(self, self._tags.take(collective.group, 1), custom, done))
            return
        left = self.planner.num_chunks(collective)[0]

        def one_done(_: None) -> None:
            nonlocal left
            left -= 1
            if not left:
                done(None)

        for _ in range(left):
            phases = self.planner.chunk(collective, self.allocators)
            self.proceed(Stream(self, self._tags.take(collective.group, 1), phases, one_done))

    def _custom_phase(self, collective: Collective) -> CustomPhase:
        ranks = self.planner.groups.get(collective.group, ())
        position = ranks.index(self.rank) if ranks else self.rank
        assert self._custom is not None  # collectives of this kind are simulated message by message
        program = self._custom.program(collective.custom, position)
        return CustomPhase(program, ranks, self.planner.shape.num_npus)

    def proceed(self, stream: Stream) -> None:
        """Into the queue of the stream's next phase, or out."""
        previous = stream.phases[stream.next_phase - 1].queue if stream.next_phase else -1
        is_over = stream.next_phase == len(stream.phases)
        if is_over:
            stream.done(None)
        if previous >= 0:
            self._queues[previous].remove(stream)
        if not is_over:
            phase = stream.phases[stream.next_phase]
            if stream.next_phase:
                stream.entered_ns = self.batches.clock.now_ns
            stream.next_phase += 1
            stream.algorithm = phase.algorithm(stream, self.rank)
            self._queues[phase.queue].append(stream)
        if previous >= 0:
            self._num_running[previous] -= 1
            self._start_waiting(previous)
        if not is_over:
            self._start_waiting(phase.queue)

    def _start_waiting(self, number: int) -> None:
        queue, width = self._queues[number], self._width
        while self._num_running[number] < min(width, len(queue)):
            stream = queue[self._num_running[number]]
            self._num_running[number] += 1
            self._note_start(number, stream)
            stream.algorithm.start()

    def _note_start(self, number: int, stream: Stream) -> None:
        """Two that came at one time, but did not start at one time: events of one time decided which was first."""
        start = stream.entered_ns, self.batches.clock.now_ns
        before = self._last_start[number]
        if start[0] >= 0 and before[0] == start[0] and before[1] != start[1]:
            stream.doubt()
        self._last_start[number] = start
