"""The fast simulations: NPUs one by one with collectives as wholes, and one NPU for all where all do the same."""

from __future__ import annotations

from collections.abc import Sequence

from phantora.astra.clock import Action, Batches, Clock
from phantora.astra.config import Memory
from phantora.astra.engine import RemoteMemory, check_member, finish_times
from phantora.astra.network import Network, UnawareNetwork
from phantora.astra.npu import Npu
from phantora.astra.plan import Allocators, Collective
from phantora.astra.program import MEMORY, RECEIVE, SEND, Operation, Program
from phantora.astra.streams import Tags
from phantora.astra.whole import Contended, Ending, Wholes
from phantora.errors import UserError


def _is_contended(programs: Sequence[Program], wholes: Wholes, memory: Memory) -> bool:
    """Messages beside collectives on links, or accesses to shared memory: their order depends on every event."""
    used = {operation.kind for program in {id(p): p for p in programs}.values() for operation in program.operations}
    return (wholes.is_aware and bool(used & {SEND, RECEIVE})) or (memory.npus_per_queue > 1 and MEMORY in used)


class Waiting:
    """A collective that some of its members have started."""

    __slots__ = ("npus", "starts_ns", "dones")

    def __init__(self) -> None:
        self.npus: list[Npu] = []
        self.starts_ns: list[int] = []
        self.dones: list[Action] = []


class WholesEngine:
    """All NPUs; a collective happens when its last member has started it."""

    def __init__(self, programs: Sequence[Program], wholes: Wholes, memory: Memory, rendezvous: bool) -> None:
        planner = wholes.planner
        self.wholes = wholes
        self.num_npus = planner.shape.num_npus
        self.clock = Clock()
        self.network: Network = UnawareNetwork(self.clock, planner.shape, rendezvous)
        if _is_contended(programs, wholes, memory):
            raise Contended
        self.npus = [Npu(rank, program, Batches(self.clock), self, True) for rank, program in enumerate(programs)]
        self._allocators = [Allocators(len(planner.shape.dims), planner.num_queues) for _ in programs]
        self._tags = [Tags() for _ in programs]
        self._memory = RemoteMemory(memory)
        self._waiting: dict[tuple[object, ...], Waiting] = {}

    def run(self) -> list[int]:
        """When each NPU has finished, in ns. UserError if one never does; Contended if this cannot tell."""
        for npu in self.npus:
            npu.start()
        self.clock.run()
        if self.clock.num_doubts:
            raise Contended
        return finish_times(self.npus)

    def start_access(self, npu: Npu, size_bytes: int, done: Action) -> None:
        """See `npu.Surroundings`."""
        self._memory.start(npu, size_bytes, done)

    def start_collective(self, npu: Npu, collective: Collective, done: Action) -> None:
        """See `npu.Surroundings`."""
        planner = self.wholes.planner
        check_member(planner, collective, npu.rank)
        geometry = self.wholes.geometry(collective)
        tag = self._tags[npu.rank].take(collective.group, planner.num_chunks(collective)[0])
        key = collective.kind, collective.size, collective.group, geometry.key, geometry.base(npu.rank), tag
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = Waiting()
        waiting.npus.append(npu)
        waiting.starts_ns.append(self.clock.now_ns)
        waiting.dones.append(done)
        if len(waiting.npus) == geometry.num_members:
            del self._waiting[key]
            self._happen(collective, waiting)

    def _happen(self, collective: Collective, waiting: Waiting) -> None:
        first_ns, npus = waiting.starts_ns[0], waiting.npus
        geometry = self.wholes.geometry(collective)
        of = [self._allocators[npu.rank] for npu in npus]
        alike = first_ns == waiting.starts_ns[-1] and all(one.state() == of[0].state() for one in of)
        if alike and geometry.is_symmetric:
            endings = [self.wholes.together(collective, npu.rank, one) for npu, one in zip(npus, of)]
        elif self.wholes.is_aware:
            raise Contended
        else:
            endings = self._apart(collective, waiting)
        for npu, done, ending in zip(npus, waiting.dones, endings):
            end(npu, done, first_ns, ending)

    def _apart(self, collective: Collective, waiting: Waiting) -> list[Ending]:
        members = self.wholes.geometry(collective).members(waiting.npus[0].rank)
        first_ns = waiting.starts_ns[0]
        starts_ns = {npu.rank: start_ns - first_ns for npu, start_ns in zip(waiting.npus, waiting.starts_ns)}
        of = [self._allocators[rank] for rank in members]
        endings = self.wholes.apart(collective, members, [starts_ns[rank] for rank in members], of)
        by_rank = dict(zip(members, endings))
        return [by_rank[npu.rank] for npu in waiting.npus]


def end(npu: Npu, done: Action, first_ns: int, ending: Ending) -> None:
    """Calls done(None) at the end, entered among the NPU's events when the last message would enter it."""

    def enter(_: None) -> None:
        npu.batches.after(ending.ends_ns - ending.entered_ns, done, None)

    assert first_ns + ending.entered_ns >= npu.batches.clock.now_ns  # no member ends before all have started
    npu.batches.clock.at(first_ns + ending.entered_ns, enter, None)


class Cohort:
    """One NPU, for all that do the same at the same time."""

    def __init__(self, program: Program, wholes: Wholes, memory: Memory) -> None:
        self.wholes = wholes
        self.num_npus = wholes.planner.shape.num_npus
        self.clock = Clock()
        self.network: Network = UnawareNetwork(self.clock, wholes.planner.shape)
        self._allocators = Allocators(len(wholes.planner.shape.dims), wholes.planner.num_queues)
        self._memory = RemoteMemory(memory)
        self._npu = Npu(0, program, Batches(self.clock), self, True)

    def run(self) -> list[int]:
        """When each NPU has finished, in ns. UserError if they never do."""
        self._npu.start()
        self.clock.run()
        if self.clock.num_doubts:
            raise Contended
        return finish_times([self._npu]) * self.num_npus

    def start_access(self, npu: Npu, size_bytes: int, done: Action) -> None:
        """See `npu.Surroundings`."""
        self._memory.start(npu, size_bytes, done)

    def start_collective(self, npu: Npu, collective: Collective, done: Action) -> None:
        """See `npu.Surroundings`."""
        end(npu, done, self.clock.now_ns, self.wholes.together(collective, npu.rank, self._allocators))


def is_cohort(programs: Sequence[Program], wholes: Wholes, memory: Memory) -> bool:
    """Whether all NPUs do the same at the same time: programs equal but for groups, no messages, all symmetric."""
    try:
        return _is_cohort(programs, wholes, memory)
    except UserError:  # a collective that cannot be run: who executes it says where it stands
        return False


def _is_cohort(programs: Sequence[Program], wholes: Wholes, memory: Memory) -> bool:
    distinct = list({id(program): program for program in programs}.values())
    if any(program.structure is not distinct[0].structure for program in distinct):
        return False
    for index, operations in enumerate(zip(*(program.operations for program in distinct))):
        first = operations[0]
        if first.kind in (SEND, RECEIVE) or (first.kind == MEMORY and memory.npus_per_queue > 1):
            return False
        different = list({id(operation): operation for operation in operations}.values())
        if first.collective is None:
            if len(different) > 1:
                return False
        elif not _is_common(index, programs, different, wholes):
            return False
    return True


def _is_common(index: int, programs: Sequence[Program], operations: list[Operation], wholes: Wholes) -> bool:
    """Whether all NPUs run an equal, symmetric collective in this node, each with all members of its group."""
    keys, groups = set(), set()
    known = wholes.planner.groups
    for operation in operations:
        collective = operation.collective
        if collective is None or (collective.group and collective.group not in known):
            return False
        geometry = wholes.geometry(collective)
        if not geometry.is_symmetric:
            return False
        keys.add((collective.kind, collective.size, geometry.key))
        groups.add(collective.group)
    if len(keys) > 1:
        return False
    if groups == {0}:
        return True
    if 0 in groups or sum(len(known[group]) for group in groups) != len(programs):
        return False
    used = [program.operations[index].collective for program in programs]
    return all(used[rank].group == group for group in groups for rank in known[group])  # type: ignore[union-attr]
