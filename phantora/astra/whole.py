"""Collectives as wholes: their times, from a simulation of the members alone, or of one for all.

Without congestion a collective depends on nothing but its members' starts: an NPU runs one communication at a time, and
no member ends before all have started. With congestion that holds where all start together and end with empty links.
What could still differ is the order of events of one time; where it matters (`Clock.num_doubts`), `Contended` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phantora.astra.clock import Batches, Clock
from phantora.astra.config import Dimension
from phantora.astra.network import (
    RENDEZVOUS_TAG,
    AwareNetwork,
    Link,
    Network,
    Shape,
    UnawareNetwork,
)
from phantora.astra.plan import Allocators, Collective, Line, Planner
from phantora.astra.ring import SkewedRing, skewed_ring
from phantora.astra.streams import Streams


class Contended(Exception):
    """A time depends on more than one collective, or on the order of events of one time: every message must be
    simulated.
    """


@dataclass(frozen=True, slots=True)
class Ending:
    """When a member ends, and when the event that ends it is entered, in ns from the first member's start."""

    ends_ns: int
    entered_ns: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """Over which ranks a collective runs, as far as it matters for its time."""

    lines: tuple[Line, ...]
    """the active ones"""
    num_members: int
    key: tuple[Any, ...]
    """equal for collectives of one kind and size that take the same time if all members start together"""
    is_symmetric: bool
    """every member then sees what every other sees"""

    def base(self, rank: int) -> int:
        """The lowest rank of those that run it together with `rank`; of a group always -1."""
        for line in self.lines:
            if not line.stride:
                return -1
            rank = line.members(rank)[0]
        return rank

    def members(self, rank: int) -> list[int]:
        """Those that run it together: in the order of the group, else ascending."""
        found = [rank]
        for line in reversed(self.lines):
            if not line.stride:
                return list(line.group)
            found = [member for one in found for member in line.members(one)]
        return sorted(set(found))


class Wholes:
    """Times of collectives of one planner on one kind of network; every distinct question is simulated once."""

    def __init__(self, planner: Planner, network: type[Network], rendezvous: bool) -> None:
        self.planner, self._rendezvous = planner, rendezvous
        self.is_aware = issubclass(network, AwareNetwork)
        self._network = network
        self._geometries: dict[Collective, Geometry] = {}
        self._together: dict[Any, Ending] = {}
        self._apart: dict[Any, list[Ending]] = {}
        self._rings: dict[tuple[Collective, int], SkewedRing | None] = {}

    def geometry(self, collective: Collective) -> Geometry:
        """UserError if the collective cannot be run."""
        geometry = self._geometries.get(collective)
        if geometry is None:
            geometry = self._geometries[collective] = self._make_geometry(collective)
        return geometry

    def _make_geometry(self, collective: Collective) -> Geometry:
        planner = self.planner
        all_lines, active = planner.lines(collective), planner.active(collective)
        lines = tuple(all_lines[i] for i in active)
        if lines[0].group:
            classes = _group_classes(lines[0], planner.shape, self.is_aware)
            key = (collective.group,) if classes is None else (lines[0].algorithm, lines[0].size, *classes)
            return Geometry(lines, lines[0].size, ("group", *key), classes is not None)
        is_flat = len(planner.shape.dims) > 1 and any(line.size == planner.shape.num_npus for line in lines)
        good = not is_flat and all(_is_symmetric(line, planner.shape.dims, self.is_aware) for line in lines)
        num_members = 1
        for line in lines:
            num_members *= line.size
        return Geometry(lines, planner.shape.num_npus if is_flat else num_members, ("world", active), good)

    def together(self, collective: Collective, rank: int, allocators: Allocators) -> Ending:
        """When each member ends if all start at once, in a symmetric geometry. `allocators` move on."""
        geometry = self.geometry(collective)
        assert geometry.is_symmetric
        key = collective.kind, collective.size, geometry.key, allocators.state()
        ending = self._together.get(key)
        if ending is None:
            make = AwareQuotient if self.is_aware else UnawareQuotient
            network = make(Clock(), self.planner.shape, self._rendezvous)
            network.fold(rank, geometry.lines)
            ending = self._together[key] = self._simulate(collective, network, [rank], [0], [allocators])[0]
        else:
            self._move_on(collective, allocators)
        return ending

    def apart(
        self, collective: Collective, members: Sequence[int], starts_ns: list[int], of: list[Allocators]
    ) -> list[Ending]:
        """When each of all members ends, if they start at these times (the first at 0). `of` (allocators) move on."""
        geometry = self.geometry(collective)
        ring = self._ring(collective, geometry, members)
        if ring is not None:
            return [Ending(end_ns, end_ns - ring.last_ns) for end_ns in ring.ends_ns(starts_ns)]
        states = tuple([allocators.state() for allocators in of])
        key = collective, geometry.key, tuple(starts_ns), states
        endings = self._apart.get(key)
        if endings is None:
            network = self._network(Clock(), self.planner.shape, self._rendezvous)
            endings = self._apart[key] = self._simulate(collective, network, members, starts_ns, of)
        else:
            for allocators in of:
                self._move_on(collective, allocators)
        return endings

    def _ring(self, collective: Collective, geometry: Geometry, members: Sequence[int]) -> SkewedRing | None:
        """The closed form, where there is one; the allocators then stay as they are: one queue, and no trees."""
        key = collective, members[0]
        if key not in self._rings:
            line, is_one = geometry.lines[0], len(geometry.lines) == 1
            applies = is_one and line.algorithm.name == "ring" and self.planner.num_queues == 1
            self._rings[key] = None
            if applies and not (self.is_aware or self._rendezvous):
                network = UnawareNetwork(Clock(), self.planner.shape)
                self._rings[key] = skewed_ring(collective, line, members, self.planner, network.delay_ns)
        return self._rings[key]

    def _move_on(self, collective: Collective, allocators: Allocators) -> None:
        if self.planner.num_queues == 1 and all(
            line.algorithm.name != "doubleBinaryTree" for line in self.geometry(collective).lines
        ):
            return
        for _ in range(self.planner.num_chunks(collective)[0]):
            self.planner.chunk(collective, allocators)

    def _simulate(
        self,
        collective: Collective,
        network: Network,
        members: Sequence[int],
        starts_ns: list[int],
        of: list[Allocators],
    ) -> list[Ending]:
        clock, endings = network.clock, dict[int, Ending]()

        def begin(streams: Streams) -> None:
            def done(_: None) -> None:
                endings[streams.rank] = Ending(clock.now_ns, streams.batches.entered_ns)

            streams.start(collective, done)

        for rank, start_ns, allocators in zip(members, starts_ns, of):
            streams = Streams(rank, Batches(clock), network, self.planner)
            streams.allocators = allocators
            if start_ns:
                clock.at(start_ns, begin, streams)
            else:
                begin(streams)
        clock.run()
        if clock.num_doubts or len(endings) < len(
            members
        ):  # or a deadlock, which the whole system's simulation explains
            raise Contended
        return [endings[rank] for rank in members]


def _is_symmetric(line: Line, dims: tuple[Dimension, ...], is_aware: bool) -> bool:
    """Whether rotating the ring (halving-doubling: inverting bits of the index) leaves everything as it is."""
    name = line.algorithm.name
    if name == "doubleBinaryTree":
        return False
    # over links of a Ring several messages of different distances would meet
    return not is_aware or dims[0].topology != "Ring" or name == "ring"


def _group_classes(line: Line, shape: Shape, is_aware: bool) -> tuple[Any, ...] | None:
    """The class of the distance of each partner, if it is the same for all members."""
    ranks, n, name = line.group, line.size, line.algorithm.name
    if is_aware:
        return () if shape.dims[0].topology != "Ring" else None
    if name == "halvingDoubling":
        offsets = [1 << i for i in range(n.bit_length() - 1)]
    else:
        offsets = [1] if name == "ring" else list(range(1, n))
    classes: list[tuple[int, int]] = []
    for offset in offsets:
        partners = [ranks[i ^ offset] if name == "halvingDoubling" else ranks[(i + offset) % n] for i in range(n)]
        found = {shape.hop_class(rank, partner) for rank, partner in zip(ranks, partners)}
        if len(found) > 1:
            return None
        classes += found
    return tuple(classes)


class _Folded(Network):
    """One rank stands for all: what it sends at an offset arrives at itself, as from the opposite offset."""

    def fold(self, rank: int, lines: tuple[Line, ...]) -> None:
        """`rank` stands for all members of the lines."""
        self._rank = rank
        self._offsets: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}
        for number, line in enumerate(lines):
            members = line.members(rank)
            own = members.index(rank)
            for i, member in enumerate(members):
                ahead, back = (i - own) % line.size, (own - i) % line.size
                if line.algorithm.name == "halvingDoubling":
                    ahead = back = i ^ own
                self._offsets[member] = (number, ahead), (number, back)

    def _sent(self, source: int, target: int, size: int, tag: int) -> tuple[int, ...]:
        return tag, *self._offsets[target][0], size

    def _received(self, source: int, target: int, size: int, tag: int) -> tuple[int, ...]:
        return tag, *self._offsets[source][1], size


class UnawareQuotient(_Folded, UnawareNetwork):
    """Without congestion."""


class AwareQuotient(_Folded, AwareNetwork):
    """With congestion: the switch's link to the target stands in as its link to this rank.

    Where messages of several ranks come to one place at one time, their order would not be the same at every rank.
    """

    def fold(self, rank: int, lines: tuple[Line, ...]) -> None:
        """See `_Folded`."""
        super().fold(rank, lines)
        self._seen: dict[int, tuple[int, set[tuple[int, int]]]] = {}

    def _link(self, key: tuple[int, int]) -> Link:
        switch = self.shape.num_npus
        return super()._link((switch, self._rank) if key[0] == switch else key)

    def _at_device(self, state: tuple[int, list[Link], int, Any]) -> None:
        _, links, hop, message = state
        tag, _, offset, _ = message[0].key
        chunk = tag % RENDEZVOUS_TAG
        seen_ns, seen = self._seen.get(hop, (-1, set()))
        if seen_ns != self.clock.now_ns:
            seen = set()
        is_last = hop == len(links)  # messages of one chunk do the same there, whoever sent them
        if any(other != offset and not (is_last and one == chunk) for one, other in seen):
            self.clock.num_doubts += 1
        seen.add((chunk, offset))
        self._seen[hop] = self.clock.now_ns, seen
        super()._at_device(state)
