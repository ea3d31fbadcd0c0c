"""A ring without congestion, whose members start at different times, in closed form: time linear in its members.

Member i is ready to send message k at G(k, i), when its own turn and its neighbour's message have come:
G(k + 1, i) = max(G(k, i), G(k, i - 1) + d(i)) + b(k + 1), where d(i) is how long a message travels to i, and b(k) how
long packet k takes over the bus and in its reduction, the same at every member. With P(i) the sum of d up to i, going
on around the ring, G(K, i) = b(0) + ... + b(K) + P(i) + max of start(x) - P(x) over the x from i - K to i. Of the x
that are one member the first counts, since P grows, so a window of one turn suffices: the largest of one turn's end and
of the next one's beginning. Source of the recurrence: `algorithms.Ring`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from phantora.astra.algorithms import Port, Ring
from phantora.astra.plan import Collective, Line, Planner
from phantora.astra.streams import bus_ns, reduction_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SkewedRing:
    """One collective over one ring. All chunks take the same; `num_rounds` of them run one after the other."""

    num_rounds: int
    num_messages: int
    """that each member sends for a chunk (K)"""
    packets_ns: int
    """b(0) + ... + b(K)"""
    last_ns: int
    """from the moment when the event that ends the last packet is entered to that event"""
    position_ns: tuple[int, ...]
    """P of each member, 0 for the first"""
    turn_ns: int
    """P grows by this with each turn"""

    def ends_ns(self, starts_ns: Sequence[int]) -> list[int]:
        """When each member ends, in the order of the ring, as the starts."""
        times_ns = list(starts_ns)
        for _ in range(self.num_rounds):
            times_ns = self._chunk_ends_ns(times_ns)
        return times_ns

    def _chunk_ends_ns(self, starts_ns: list[int]) -> list[int]:
        lead_ns = [start - position for start, position in zip(starts_ns, self.position_ns)]
        upto = list(accumulate(lead_ns, max))
        since = list(accumulate(reversed(lead_ns), max))[::-1]
        n, ends_ns = len(lead_ns), []
        for i, position in enumerate(self.position_ns):
            # the window: from `first` to the end of its turn, and the next turn up to before `first`
            turns, first = divmod(i - self.num_messages, n)
            best_ns = since[first] - turns * self.turn_ns
            if first:
                best_ns = max(best_ns, upto[first - 1] - (turns + 1) * self.turn_ns)
            ends_ns.append(self.packets_ns + position + best_ns)
        return ends_ns


class _Packets:
    """The `Port` of a ring of which only the order of the packets is wanted: what each costs."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self.total_ns = self.last_ns = 0

    def bus(self, is_local: bool, action: Any, size: int) -> None:
        """A packet; `size` bytes of it are reduced if it is not negative."""
        system = self._planner.system
        self.last_ns = bus_ns(system, is_local)
        self.total_ns += self.last_ns
        if size >= 0:
            self.last_ns = reduction_ns(system, size)
            self.total_ns += self.last_ns


def skewed_ring(
    collective: Collective, line: Line, members: Sequence[int], planner: Planner, travel_ns: Callable[..., int]
) -> SkewedRing | None:
    """None for empty messages, which the simulation of every message refuses. travel_ns: of (source, target, bytes)."""
    count, chunk_bytes = planner.num_chunks(collective)
    packets = _Packets(planner)
    ring = Ring(cast(Port, packets), collective.kind, members, 0, bool(line.group), chunk_bytes, 1, 0)
    if ring.message_bytes <= 0:
        return None
    num_messages = ring.num_to_send
    ring.start()
    for _ in range(num_messages):
        ring.received(None)
    targets = [*members[1:], members[0]]
    steps_ns = [travel_ns(source, target, ring.message_bytes) for source, target in zip(members, targets)]
    return SkewedRing(
        num_rounds=-(-count // planner.system.active_chunks), num_messages=num_messages, packets_ns=packets.total_ns,
        last_ns=packets.last_ns, position_ns=(0, *accumulate(steps_ns[:-1])), turn_ns=sum(steps_ns),
    )  # fmt: skip
