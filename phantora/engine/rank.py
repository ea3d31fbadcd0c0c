"""What the engine knows of one rank: its timeline, what it is doing, and what it waits for."""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from phantora.engine.collectives import Collective
from phantora.engine.timeline import RankTimeline


class State(enum.Enum):
    """What a rank is doing, as far as the engine knows."""

    ABSENT = "has not started"
    RUNNING = "is running"
    BLOCKED = "waits for the simulation"
    PAYLOAD = "waits for the contents of a collective"
    ORDERED = "waits for its turn"  # answered when no other rank can act before its clock
    FINISHED = "has finished"


class Rank:
    """One rank: its timeline, and what it waits for."""

    def __init__(self, number: int, timeline: RankTimeline) -> None:
        self.number = number
        self.timeline = timeline
        self.state = State.ABSENT
        self.call: dict[str, Any] = {}  # the call that blocks its main thread
        self.answer: Callable[[], None] | None = None  # of an ORDERED call
        self.stacks: dict[int, str] = {-1: ""}
        self.payloads: OrderedDict[tuple[int, int], Collective] = OrderedDict()
        self.thread_ends: dict[int, tuple[int, int]] = {}  # host thread -> the point at which it ended
        self.unseen_wait = False  # waits for something that the engine cannot see (found by the watchdog)
        self.stand_ins: dict[str, int] = {}
        self.remarks: list[str] = []
        self.error: str | None = None

    def point(self, fields: dict[str, Any], peers: tuple[tuple[int, int], ...] = ()) -> tuple[int, int]:
        """Note the moment of a message: others may wait for it. (rank, number of the entry); peers: what came before it."""
        now_ns = fields["clock_ns"]
        return self.number, self.timeline.host_wait(now_ns, now_ns, "point", fields.get("thread", 0), (), peers)

    def waited(
        self, fields: dict[str, Any], end_ns: int, reason: str, peers: tuple[tuple[int, int], ...], delay_ns: int = 0
    ) -> None:
        """Note that the call `fields` waited for other hosts."""
        begin_ns, thread = fields["clock_ns"], fields.get("thread", 0)
        self.timeline.host_wait(begin_ns, max(begin_ns, end_ns), reason, thread, (), peers, delay_ns)

    @property
    def ended_well(self) -> bool:
        """Whether it has finished with exit code 0 (what follows from a failure is not news)."""
        return self.state is State.FINISHED and self.timeline.trace.exit_code == 0

    @property
    def bound_ns(self) -> int | None:
        """Nothing this rank does from now on can happen earlier; None: it cannot act until it is answered."""
        if self.state in (State.BLOCKED, State.FINISHED) or self.unseen_wait:
            return None
        return self.timeline.clock_ns
