"""How the system layer cuts a collective: chunks, and per chunk one phase per dimension with its queue and direction.

Source: astra-sim, Sys::generate_collective and Sys::determine_chunk_size, QueueLevelHandler.cc, CommunicatorGroup.cc,
GeneralComplexTopology.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from phantora.astra.algorithms import (
    Direct,
    HalvingDoubling,
    Packets,
    Port,
    Ring,
    Tree,
    output_bytes,
    tree_neighbours,
)
from phantora.astra.config import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVES,
    REDUCE_SCATTER,
    Algorithm,
    Groups,
    System,
)
from phantora.astra.network import Shape
from phantora.errors import UserError

_MAX_CHUNKS = 1_000_000  # as many as a group has tags
_PACKET_ALGORITHMS = {"ring": Ring, "direct": Direct, "halvingDoubling": HalvingDoubling}


class Collective(NamedTuple):
    """What a COMM_COLL node asks for. `group` 0 is the whole world; `involved` counts only there.
    `custom`: prefix of the traces that describe it, if any do."""

    kind: int
    size: int
    group: int
    involved: tuple[bool, ...]
    custom: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A logical dimension: rings of `size` ranks, `stride` apart, or the ranks of a group (stride 0)."""

    algorithm: Algorithm
    size: int
    stride: int
    level: int
    """whose queues it uses"""
    group: tuple[int, ...] = ()

    def members(self, rank: int) -> Sequence[int]:
        """The ranks of the ring of a rank, in order."""
        if self.group:
            return self.group
        base = rank - rank // self.stride % self.size * self.stride
        return range(base, base + self.size * self.stride, self.stride)


@dataclass(frozen=True, slots=True)
class Phase:
    """One algorithm over one line. `queue` is a number across all levels; `step` +1 (clockwise) or -1."""

    kind: int
    line: Line
    size: int
    queue: int
    step: int
    is_root_last: bool
    is_local: bool

    def algorithm(self, port: Port, rank: int) -> Packets | Tree:
        """The algorithm as `rank` runs it."""
        members = self.line.members(rank)
        index = members.index(rank)
        name = self.line.algorithm.name
        if name == "doubleBinaryTree":
            return Tree(port, self.size, *tree_neighbours(members, index, self.is_root_last))
        make = _PACKET_ALGORITHMS[name]
        return make(port, self.kind, members, index, self.is_local, self.size, self.step, self.line.algorithm.window)


class Allocators:
    """Of one NPU: which queue of a level comes next, and which of the two trees."""

    __slots__ = ("num_queues", "levels", "trees")

    def __init__(self, num_levels: int, num_queues: int) -> None:
        self.num_queues = num_queues
        self.levels = [[0, 0, num_queues // 2] for _ in range(num_levels)]
        self.trees: dict[tuple[int, int], int] = {}

    def state(self) -> tuple[object, ...]:
        """Equal for two NPUs whose next collective is cut alike."""
        return (*map(tuple, self.levels), *sorted(self.trees.items()))

    def queue(self, level: int, which: int) -> tuple[int, int]:
        """(queue, step); `which`: 0 any of the level's queues, 1 the first half, 2 the second half."""
        n, following = self.num_queues, self.levels[level]
        number = following[which]
        lowest, above = ((0, n), (0, max(n // 2, 1)), (n // 2, n))[which]
        following[which] = number + 1 if number + 1 < above else lowest
        backwards = which == 2 or (which == 0 and n > 1 and number >= n // 2)
        return level * n + number, -1 if backwards else 1

    def is_root_last(self, kind: int, level: int) -> bool:
        """Which tree comes next; they alternate."""
        count = self.trees[kind, level] = self.trees.get((kind, level), 0) + 1
        return count % 2 == 1


class Planner:
    """Cuts collectives of one system, network and set of groups."""

    def __init__(self, system: System, shape: Shape, groups: Groups, num_queues: int = 1) -> None:
        self.system, self.shape, self.groups, self.num_queues = system, shape, groups, num_queues
        self._lines: dict[tuple[int, int], tuple[Line, ...]] = {}

    def is_world(self, group: int) -> bool:
        """Whether the multi-dimensional algorithms apply."""
        return group == 0 or len(self.groups[group]) == self.shape.num_npus

    def lines(self, collective: Collective) -> tuple[Line, ...]:
        """The logical dimensions of a collective. UserError if it cannot be run on them."""
        key = collective.kind, 0 if self.is_world(collective.group) else collective.group
        lines = self._lines.get(key)
        if lines is None:
            lines = self._lines[key] = self._world(key[0]) if key[1] == 0 else self._group(*key)
        return lines

    def _world(self, kind: int) -> tuple[Line, ...]:
        lines = []
        for level, algorithm in enumerate(self._algorithms(kind)):
            if algorithm.name.startswith("one"):
                flat = Algorithm(algorithm.name[3].lower() + algorithm.name[4:], algorithm.window)
                lines.append(_checked(kind, Line(flat, self.shape.num_npus, 1, level)))
                break
            lines.append(_checked(kind, Line(algorithm, self.shape.dims[level].size, self.shape.strides[level], level)))
        return tuple(lines)

    def _group(self, kind: int, group: int) -> tuple[Line, ...]:
        ranks = self.groups[group]
        if len(ranks) == 1:
            raise UserError(f"group {group} has one rank; a {COLLECTIVES[kind]} of one rank never ends in ASTRA-sim")
        configured = self._algorithms(kind)
        algorithm = configured[0] if len(configured) == 1 else Algorithm("ring")
        if algorithm.name == "doubleBinaryTree":
            raise UserError(f"group {group}: ASTRA-sim crashes on doubleBinaryTree for a group smaller than the world")
        if algorithm.name.startswith("one"):
            algorithm = Algorithm(algorithm.name[3].lower() + algorithm.name[4:], algorithm.window)
        return (_checked(kind, Line(algorithm, len(ranks), 0, 0, ranks)),)

    def _algorithms(self, kind: int) -> tuple[Algorithm, ...]:
        found = self.system.algorithms.get(kind)
        if not found:
            raise UserError(
                f'a {COLLECTIVES[kind]}, but the system configuration has no "{COLLECTIVES[kind]}-implementation"'
            )
        return found

    def active(self, collective: Collective) -> tuple[int, ...]:
        """Numbers of the lines that a collective runs over, ascending. UserError if involved_dim does not say."""
        lines = self.lines(collective)
        if collective.group:
            return tuple(range(len(lines)))
        if len(collective.involved) < len(lines):
            raise UserError(
                f"involved_dim has {len(collective.involved)} values, but there are {len(lines)} dimensions"
            )
        active = tuple(i for i in range(len(lines)) if collective.involved[i])
        if not active:
            raise UserError("involved_dim is false for every dimension: never ends in ASTRA-sim")
        return active

    def num_chunks(self, collective: Collective) -> tuple[int, int]:
        """(how many, bytes of each): the last one is not smaller."""
        size, splits, num_npus = collective.size, self.system.splits, self.shape.num_npus
        chunk = size // splits
        if collective.kind != ALL_GATHER and num_npus > chunk:
            chunk, size = num_npus, splits * num_npus
        if chunk == 0:
            raise UserError(f"an all-gather of {size} bytes in {splits} chunks never ends in ASTRA-sim")
        count = -(-size // chunk)
        if count > _MAX_CHUNKS:
            raise UserError(f"a {COLLECTIVES[collective.kind]} of {size} bytes in {count} chunks; at most {_MAX_CHUNKS}")
        return count, chunk

    def chunk(self, collective: Collective, allocators: Allocators) -> list[Phase]:
        """The phases of the next chunk of an NPU."""
        size = self.num_chunks(collective)[1]
        phases = []
        for kind, line, which in self._order(collective):
            queue, step = allocators.queue(line.level, which)
            is_tree = line.algorithm.name == "doubleBinaryTree"
            is_root_last = is_tree and allocators.is_root_last(collective.kind, line.level)
            phases.append(Phase(kind, line, size, queue, step, is_root_last, bool(line.group)))
            size = size if is_tree else output_bytes(kind, line.size, size)
        return phases

    def _order(self, collective: Collective) -> list[tuple[int, Line, int]]:
        """(what, where, which half of the queues) of each phase."""
        kind, lines = collective.kind, self.lines(collective)
        used = [lines[i] for i in self.active(collective)]
        is_baseline = self.system.is_baseline
        if kind == ALL_REDUCE and is_baseline is None and (len(used) > 1 or self.num_queues > 1):
            raise UserError('an all-reduce needs "collective-optimization" in the system configuration here')
        if kind != ALL_REDUCE or is_baseline:
            return [(kind, line, 0) for line in (reversed(used) if kind == ALL_GATHER else used)]
        down = [(REDUCE_SCATTER, line, 1) for line in used[:-1]]
        return [*down, (ALL_REDUCE, used[-1], 1), *((ALL_GATHER, line, 2) for line in reversed(used[:-1]))]


def _checked(kind: int, line: Line) -> Line:
    """UserError where an algorithm hangs or exits."""
    name = line.algorithm.name
    if name in ("halvingDoubling", "doubleBinaryTree") and line.size & (line.size - 1):
        raise UserError(f"{name} over {line.size} ranks: needs a power of two")
    if name == "halvingDoubling" and kind == ALL_TO_ALL:
        raise UserError("halvingDoubling does not know all-to-all")
    return line
