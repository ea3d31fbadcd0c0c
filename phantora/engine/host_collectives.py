"""Collectives on host memory (the `gloo` backend): their data really travel, through the engine.

A member posts its part when it issues the call and blocks when it waits for the result. Everybody wakes at the latest
poster's clock plus the time of the transfer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from phantora.errors import SimulationError

# Gloo over TCP between processes: per-call overhead and bandwidth of one host's loopback or Ethernet path.
# Estimates (a round trip through two TCP stacks and a thread wake-up; one core copying): host collectives carry small
# control messages in GPU training, their time does not decide a step.
LATENCY_NS = 60_000
BYTES_PER_S = 2_000_000_000

_COMPARED = ("kind", "dtype", "count", "root", "reduce_op")

Point = tuple[int, int]
"""(rank, entry of its wait columns): where a member posted its part."""

# Ready(when everybody wakes, what the members sent, where they posted, time of the transfer)
Ready = Callable[[int, "list[bytes | None]", "tuple[Point, ...]", int], None]


@dataclass(slots=True, eq=False)
class _Open:
    group: str
    ranks: tuple[int, ...]
    seq: Any
    posted: dict[int, dict[str, Any]] = field(default_factory=dict)
    points: dict[int, Point] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)
    waiters: list[Ready] = field(default_factory=list)
    fetched: int = 0


class HostCollectives:
    """Open host collectives by (ranks, group, seq); seq is an int, or a list that names a send/recv pair."""

    def __init__(self) -> None:
        self._open: dict[tuple[Any, ...], _Open] = {}

    def post(
        self, rank: int, group: str, ranks: tuple[int, ...], fields: dict[str, Any], stack: str, point: Point
    ) -> None:
        entry = self._entry(group, ranks, fields["seq"])
        for other, posted in entry.posted.items():
            for name in _COMPARED:
                if posted.get(name) != fields.get(name):
                    raise SimulationError(
                        f"collectives do not match on host group {group!r}: rank {other} called {posted['kind']} with {name} "
                        f"{posted.get(name)}, rank {rank} {fields['kind']} with {fields.get(name)}\n"
                        f"rank {other} called from\n{entry.stacks[other]}\nrank {rank} called from\n{stack}"
                    )
            break
        entry.posted[rank], entry.stacks[rank], entry.points[rank] = fields, stack, point
        if len(entry.posted) == len(entry.ranks):
            waiters, entry.waiters = entry.waiters, []
            for waiter in waiters:
                self._deliver(entry, waiter)

    def when_complete(self, group: str, ranks: tuple[int, ...], seq: Any, ready: Ready) -> None:
        entry = self._entry(group, ranks, seq)
        if len(entry.posted) == len(entry.ranks):
            self._deliver(entry, ready)
        else:
            entry.waiters.append(ready)

    def _entry(self, group: str, ranks: tuple[int, ...], seq: Any) -> _Open:
        key = (ranks, group, _hashable(seq))
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = _Open(group, ranks, seq)
        return found

    def _deliver(self, entry: _Open, ready: Ready) -> None:
        posts = [entry.posted[rank] for rank in entry.ranks]
        size = max(post.get("bytes", 0) for post in posts)
        delay_ns = LATENCY_NS + size * 1_000_000_000 // BYTES_PER_S
        wake_ns = max(post["clock_ns"] for post in posts) + delay_ns
        entry.fetched += 1
        if entry.fetched == len(entry.ranks):
            del self._open[entry.ranks, entry.group, _hashable(entry.seq)]
        points = tuple(entry.points[rank] for rank in entry.ranks)
        ready(wake_ns, [post.get("payload") for post in posts], points, delay_ns)

    def incomplete(self) -> list[str]:
        """A line and a stack for each host collective that some member has not joined."""
        lines = []
        for entry in self._open.values():
            missing = [rank for rank in entry.ranks if rank not in entry.posted]
            if entry.posted and missing:
                first = min(entry.posted)
                kind = entry.posted[first]["kind"]
                lines.append(f"{kind} on host group {entry.group!r}: joined by ranks {sorted(entry.posted)}, not by ranks {missing}")
                lines.append(f"rank {first} called it from\n{entry.stacks[first]}")
        return lines


def _hashable(seq: Any) -> Any:
    return tuple(seq) if isinstance(seq, list) else seq
