"""Matching of collectives across ranks.

The k-th collective of a group on one rank meets the k-th of every other member (NCCL's rule: order of calls, not names);
the k-th send from i to j meets the k-th receive of j from i. What the members say must agree: a difference ends the run at
once with the ranks, the calls and their Python stacks, where real NCCL would hang or corrupt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phantora.errors import SimulationError
from phantora.network.operation import CommOperation

MatchKey = tuple[Any, ...]

# What must be equal on all members, with the word for it in the error.
_COMPARED = (("kind", "operation"), ("dtype", "dtype"), ("count", "number of elements"), ("root", "root"), ("reduce_op", "reduction"))


@dataclass(slots=True, eq=False)
class Member:
    """One rank's part in a collective. part: the fields of its announcement (contract: protocol.Frame.COLLECTIVE)."""

    rank: int
    part: dict[str, Any]
    stack: str
    kernel: Any = None
    ready_ns: int = -1


@dataclass(slots=True, eq=False)
class Collective:
    """One collective of a group, or one send/recv pair, while it is being assembled and run."""

    key: MatchKey
    ranks: tuple[int, ...]  # all members, in group order; (source, destination) for a send/recv
    group: str
    members: dict[int, Member] = field(default_factory=dict)
    begun: bool = False
    start_ns: int = -1
    end_ns: int = -1
    algorithm: str = ""
    payload_waiters: list[Callable[[], None]] = field(default_factory=list)

    @property
    def announced(self) -> bool:
        """Whether every member has issued its part (its launch may still wait for earlier work)."""
        return len(self.members) == len(self.ranks)

    @property
    def kind(self) -> str:
        return next(iter(self.members.values())).part["kind"]

    def missing(self) -> list[int]:
        return [rank for rank in self.ranks if rank not in self.members]

    def operation(self) -> CommOperation:
        """What the network carries. All members must have announced their parts."""
        part = self.members[self.ranks[0]].part
        splits = None
        if part["kind"] == "all_to_all" and part.get("splits_in"):
            splits = tuple(tuple(self.members[rank].part["splits_in"]) for rank in self.ranks)
            if len({size for row in splits for size in row}) == 1:
                splits = None  # equal parts
        size = max(member.part["bytes"] for member in self.members.values())
        return CommOperation(
            kind=part["kind"], ranks=self.ranks, bytes=size, dtype=part["dtype"], root=part.get("root") or 0, split_bytes=splits
        )

    def payloads(self) -> list[bytes | None]:
        return [self.members[rank].part.get("payload") for rank in self.ranks]


class Part:
    """Handle that a CollectiveKernel holds: joins the rank's launch to the collective."""

    __slots__ = ("collective", "member")

    def __init__(self, collective: Collective, member: Member) -> None:
        self.collective, self.member = collective, member

    @property
    def communicator(self) -> tuple[Any, ...]:
        """The communicator: its members and its name."""
        return self.collective.key[:2]

    def joined(self, kernel: Any) -> None:
        self.member.kernel = kernel


class Matcher:
    """Collectives that are not finished, by match key."""

    def __init__(self) -> None:
        self.open: dict[MatchKey, Collective] = {}

    def announce(self, rank: int, group: str, ranks: tuple[int, ...], part: dict[str, Any], stack: str) -> Part:
        """Rank `rank` has issued `part` on `group`. SimulationError when it contradicts another member's part."""
        if part["kind"] == "send_recv":
            source, destination = ranks[part["src"]], ranks[part["dst"]]
            key: MatchKey = (ranks, group, 1, source, destination, part["seq"])
            members: tuple[int, ...] = (source, destination)
        else:
            key, members = (ranks, group, 0, 0, 0, part["seq"]), ranks
        _check_root(rank, ranks, group, part, stack)
        collective = self.open.get(key)
        if collective is None:
            collective = self.open[key] = Collective(key, members, group)
        member = Member(rank, part, stack)
        if rank in collective.members:
            raise SimulationError(f"rank {rank} joined {describe(collective, member)} twice\n{stack}")
        for other in collective.members.values():
            self._compare(collective, other, member)
            break
        collective.members[rank] = member
        if collective.announced:
            if collective.kind == "all_to_all":
                _compare_splits(collective)
            waiters, collective.payload_waiters = collective.payload_waiters, []
            for waiter in waiters:
                waiter()
        return Part(collective, member)

    def finished(self, collective: Collective) -> None:
        self.open.pop(collective.key, None)

    def _compare(self, collective: Collective, first: Member, second: Member) -> None:
        for name, word in _COMPARED:
            if first.part.get(name) != second.part.get(name):
                raise SimulationError(
                    f"collectives do not match: {word} differs in call number {second.part['seq'] + 1} of group {collective.group!r} "
                    f"(ranks {_short(collective.ranks)})\n"
                    f"rank {first.rank}: {describe(collective, first)}, called from\n{first.stack}\n"
                    f"rank {second.rank}: {describe(collective, second)}, called from\n{second.stack}"
                )


def _check_root(rank: int, ranks: tuple[int, ...], group: str, part: dict[str, Any], stack: str) -> None:
    root = part.get("root") or 0
    if not 0 <= root < len(ranks):
        raise SimulationError(
            f"rank {rank} called {part['kind']} with root {root} on group {group!r}, which has {len(ranks)} ranks\n{stack}"
        )


def _compare_splits(collective: Collective) -> None:
    """What rank i sends to j must be what j expects from i."""
    for i, sender in enumerate(collective.ranks):
        for j, receiver in enumerate(collective.ranks):
            sent = collective.members[sender].part.get("splits_in")
            expected = collective.members[receiver].part.get("splits_out")
            if sent and expected and sent[j] != expected[i]:
                first, second = collective.members[sender], collective.members[receiver]
                raise SimulationError(
                    f"collectives do not match: all_to_all on group {collective.group!r}: rank {sender} sends {sent[j]} bytes to rank "
                    f"{receiver}, which expects {expected[i]}\nrank {sender} called from\n{first.stack}\nrank {receiver} called from\n{second.stack}"
                )


def describe(collective: Collective, member: Member) -> str:
    """'all_reduce(count=1024, dtype=float32, reduce_op=SUM) #4 on group 0'."""
    part = member.part
    if part["kind"] == "send_recv":
        source, destination = collective.ranks
        word = f"send to rank {destination}" if part.get("is_send") else f"recv from rank {source}"
        return f"{word}(count={part['count']}, dtype={part['dtype']}) #{part['seq']} on group {collective.group!r}"
    details = [f"count={part['count']}", f"dtype={part['dtype']}"]
    if part["kind"] in ("broadcast", "reduce", "gather", "scatter"):
        details.append(f"root={part.get('root')}")
    if part.get("reduce_op"):
        details.append(f"reduce_op={part['reduce_op']}")
    return f"{part['kind']}({', '.join(details)}) #{part['seq']} on group {collective.group!r}"


def _short(ranks: tuple[int, ...]) -> str:
    """'0-7' for a run of ranks, else a list, cut after 16."""
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[0] + len(ranks))):
        return f"{ranks[0]}-{ranks[-1]}"
    text = ", ".join(map(str, ranks[:16]))
    return text + (", ..." if len(ranks) > 16 else "")
