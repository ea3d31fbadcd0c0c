"""ASTRA-sim's collective algorithms, event by event, as one rank runs them for one chunk in one dimension.

Each waits for `general` (a packet has passed the memory bus, and was reduced where the algorithm says so) and
`received` (a message has arrived), sends through `Port`, and calls `Port.finished` at its end. Source: astra-sim,
system/astraccl/native_collectives/collective_algorithm/{Ring,AllToAll,HalvingDoubling, DoubleBinaryTreeAllReduce}.cc
and system/PacketBundle.cc.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from phantora.astra.config import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER


class Port(Protocol):
    """What an algorithm needs of the layer around it."""

    def send(self, target: int, size: int) -> None:
        """A message of the chunk."""

    def receive(self, source: int, size: int, received: Any) -> None:
        """received(None) when the message is there."""

    def bus(self, is_local: bool, action: Any, size: int) -> None:
        """action(size) after the endpoint delay."""

    def reduce(self, size: int, action: Any) -> None:
        """action(-1) after the time of a reduction of `size` bytes."""

    def finished(self) -> None:
        """The phase is over."""

    def now_ns(self) -> int:
        """Virtual time."""

    def doubt(self) -> None:
        """See `Clock.num_doubts`."""


def output_bytes(kind: int, num_members: int, size: int) -> int:
    """Bytes that a rank has after a phase over `size` bytes."""
    if kind == ALL_GATHER:
        return size * num_members
    return size // num_members if kind == REDUCE_SCATTER else size


class Packets:
    """What ring, direct and halving-doubling share: packets pass the bus, then wait for their turn to be sent."""

    __slots__ = (
        "port", "kind", "members", "index", "is_local", "num_to_send", "width", "message_bytes", "num_free",
        "num_plain", "num_reducing", "is_first_half", "num_received", "queue",
    )  # fmt: skip

    def __init__(self, port: Port, kind: int, members: Sequence[int], index: int, is_local: bool) -> None:
        self.port, self.kind, self.members, self.index, self.is_local = port, kind, members, index, is_local
        self.width = 1
        """how many packets are under way at once"""
        self.num_to_send = self.message_bytes = 0
        self.num_free = self.num_plain = self.num_reducing = self.num_received = 0
        self.is_first_half = False
        self.queue: deque[tuple[int, int, int]] = deque()

    def start(self) -> None:
        """The chunk's turn has come."""
        for _ in range(self.width):
            self._insert()

    def received(self, _: None) -> None:
        """A message has arrived."""
        self.num_received += 1
        self._insert()

    def _num_reducing(self) -> int:
        raise NotImplementedError

    def _peers(self) -> tuple[int, int]:
        """(to whom, from whom) the packet inserted now will go; moves on to the next."""
        raise NotImplementedError

    def _insert(self) -> None:
        if not self.num_plain and not self.num_reducing:
            self.num_plain = self.width
            self.num_reducing = self._num_reducing()
            self.is_first_half = not self.is_first_half
        reduced = -1
        if self.num_plain:
            self.num_plain -= 1
        else:
            self.num_reducing -= 1
            if self.kind == REDUCE_SCATTER or (self.kind == ALL_REDUCE and self.is_first_half):
                reduced = self.message_bytes
        size = self.message_bytes
        self.port.bus(self.is_local, self.bus_passed, reduced)
        self.queue.append((*self._peers(), size))

    def bus_passed(self, size: int) -> None:
        """A packet has passed the bus; `size` bytes are to be reduced if it is not negative."""
        if size >= 0:
            self.port.reduce(size, self.bus_passed)
        else:
            self.general()

    def general(self) -> None:
        """A packet is ready."""
        self.num_free += 1
        self._send_one()
        self._end_if_done()

    def _send_one(self) -> None:
        if self.queue and self.num_to_send and self.num_free:
            target, source, size = self.queue.popleft()
            self.num_to_send -= 1
            self.num_free -= 1
            self.port.send(target, size)
            self.port.receive(source, size, self.received)

    def _end_if_done(self) -> None:
        if self.num_to_send == 0 and self.num_free == self.width:
            self.port.finished()


class Ring(Packets):
    """Every rank sends to its neighbour."""

    __slots__ = ("step",)

    def __init__(
        self,
        port: Port,
        kind: int,
        members: Sequence[int],
        index: int,
        is_local: bool,
        size: int,
        step: int,
        window: int,
    ) -> None:
        super().__init__(port, kind, members, index, is_local)
        n = len(members)
        self.step = step
        self.num_to_send = {ALL_REDUCE: 2 * (n - 1), ALL_TO_ALL: n * (n - 1) // 2}.get(kind, n - 1)
        self.message_bytes = size if kind == ALL_GATHER else size // n

    def _num_reducing(self) -> int:
        return (len(self.members) - 1) * self.width

    def _peers(self) -> tuple[int, int]:
        n = len(self.members)
        return self.members[(self.index + self.step) % n], self.members[(self.index - self.step) % n]


class Direct(Ring):
    """Every rank sends to every other, at most `window` messages at once (0: all)."""

    __slots__ = ("distance", "received_ns", "general_ns")

    def __init__(
        self,
        port: Port,
        kind: int,
        members: Sequence[int],
        index: int,
        is_local: bool,
        size: int,
        step: int,
        window: int,
    ) -> None:
        super().__init__(port, kind, members, index, is_local, size, step, window)
        n = len(members)
        self.width = min(window or n - 1, n - 1)
        self.distance = 1
        self.received_ns = self.general_ns = -1
        if kind == ALL_TO_ALL:
            self.num_to_send = n - 1

    def _num_reducing(self) -> int:
        return (len(self.members) - 1) * self.width if self.is_local else self.width

    def _peers(self) -> tuple[int, int]:
        n, offset = len(self.members), self.step * self.distance
        self.distance = self.distance % (n - 1) + 1
        return self.members[(self.index + offset) % n], self.members[(self.index - offset) % n]

    def received(self, _: None) -> None:
        """A message has arrived."""
        self.received_ns = self.port.now_ns()
        if self.general_ns == self.received_ns:
            self.port.doubt()
        super().received(None)

    def general(self) -> None:
        """In the second half of an all-reduce everything must have been received before anything is sent."""
        half = len(self.members) - 1
        if self.kind != ALL_REDUCE or self.num_to_send > half:
            super().general()
            return
        self.general_ns = self.port.now_ns()
        if self.general_ns == self.received_ns:
            self.port.doubt()
        self.num_free += 1
        if self.num_received >= half:
            for _ in range(self.width):
                self._send_one()
            self._end_if_done()


class HalvingDoubling(Packets):
    """Exchanges with the partner at distance 1, 2, 4, ... (all-gather: ..., 2, 1). Needs a power of two."""

    __slots__ = ("distance", "is_doubling")

    def __init__(
        self,
        port: Port,
        kind: int,
        members: Sequence[int],
        index: int,
        is_local: bool,
        size: int,
        step: int,
        window: int,
    ) -> None:
        super().__init__(port, kind, members, index, is_local)
        rounds = len(members).bit_length() - 1
        self.num_to_send = 2 * rounds if kind == ALL_REDUCE else rounds
        self.is_doubling = kind == ALL_GATHER
        self.message_bytes = size if self.is_doubling else size // 2
        self.distance = len(members) // 2 if self.is_doubling else 1

    def _num_reducing(self) -> int:
        return len(self.members).bit_length() - 2

    def _peers(self) -> tuple[int, int]:
        partner = self.members[self.index ^ self.distance % len(self.members)]  # the last packet is never sent
        if self.is_doubling:
            self.distance //= 2
            self.message_bytes *= 2
        else:
            self.distance *= 2
            self.message_bytes //= 2
            if self.distance == len(self.members) and self.kind == ALL_REDUCE:
                self.is_doubling = True
                self.distance //= 2
                self.message_bytes *= 2
        return partner, partner


class Tree:
    """All-reduce up and down one binary tree: `parent` and `children` are ranks; the root has one child."""

    __slots__ = ("port", "size", "parent", "children", "state", "was_reduced")

    def __init__(self, port: Port, size: int, parent: int | None, children: tuple[int, ...]) -> None:
        self.port, self.size, self.parent, self.children = port, size, parent, children
        self.state = "begin"
        self.was_reduced = False

    def start(self) -> None:
        """The chunk's turn has come."""
        if not self.children:
            self.port.bus(False, self.bus_passed, -1)
            self.state = "to parent"
            return
        self.state = "two children" if self.parent is not None else "one child"
        for child in self.children:
            self.port.receive(child, self.size, self.received)

    def received(self, _: None) -> None:
        """A message has arrived."""
        if not self.children:
            self.port.bus(False, self.bus_passed, -1)
            self.state = "end"
            return
        self.port.bus(False, self.bus_passed, self.size)
        after = {"two children": "one child", "one child": "to parent", "from parent": "to children"}
        self.state = "to children" if self.parent is None else after[self.state]

    def bus_passed(self, size: int) -> None:
        """As for packets."""
        if size >= 0:
            self.port.reduce(size, self.bus_passed)
        elif self.parent is not None and self.children and not self.was_reduced:
            self.was_reduced = True  # the first child's data; the second one's sends to the parent
        elif self.state == "to parent":
            self._send_to_parent()
        elif self.state == "to children":
            for child in self.children:
                self.port.send(child, self.size)
            self.port.finished()
        elif self.state == "end":
            self.port.finished()

    def _send_to_parent(self) -> None:
        assert self.parent is not None
        self.state = "from parent"
        self.port.send(self.parent, self.size)
        self.port.receive(self.parent, self.size, self.received)


def tree_neighbours(members: Sequence[int], index: int, is_root_last: bool) -> tuple[int | None, tuple[int, ...]]:
    """(parent, children) of a member in the in-order binary tree over a power of two of members.

    The root is the last member (its only child left of it) or the first; the others form a complete tree in between.
    Source: logical_topology/BinaryTree.cc and DoubleBinaryTreeTopology.cc.
    """
    n = len(members)
    shift = 1 if is_root_last else 0  # position 1..n-1 within the complete tree, whose root is n / 2
    position = index + shift
    root = members[n - 1 if is_root_last else 0]
    if members[index] == root:
        return None, (members[n // 2 - shift],)
    low = position & -position
    parent = root if low == n // 2 else members[(position - low | 2 * low) - shift]
    if low == 1:
        return parent, ()
    return parent, (members[position - low // 2 - shift], members[position + low // 2 - shift])
