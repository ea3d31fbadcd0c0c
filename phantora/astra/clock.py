"""Events in ASTRA-sim's order: by time, and at one time in the order in which they were entered.

An NPU collects its own events of one time in a batch, which stands in the queue where its first event was entered.
Source: astra-network-analytical, common/event-queue; astra-sim, Sys::try_register_event and Sys::call_events.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from phantora.errors import UserError

Action = Callable[[Any], None]


class Clock:
    """Virtual time and the events to come. `now_ns` only grows.

    `num_doubts` counts the moments at which the order of two events of one time mattered although nothing but their
    places in the queue decides it: a simulation of a part of the system may then order them differently than that of
    the whole.
    """

    __slots__ = ("now_ns", "num_doubts", "_times", "_events")

    def __init__(self) -> None:
        self.now_ns = self.num_doubts = 0
        self._times: list[int] = []
        self._events: dict[int, list[tuple[Action, Any]]] = {}

    def at(self, time_ns: int, action: Action, argument: Any) -> None:
        """Calls action(argument) at a time that is not in the past. UserError at time 0, where ASTRA-sim aborts."""
        there = self._events.get(time_ns)
        if there is None:
            if time_ns <= 0:
                raise UserError("an event at time 0 (a message or kernel that takes 0 ns), which ASTRA-sim cannot run")
            self._events[time_ns] = [(action, argument)]
            heappush(self._times, time_ns)
        else:
            there.append((action, argument))

    def run(self) -> None:
        """Until no event is left."""
        times, events = self._times, self._events
        while times:
            self.now_ns = now_ns = heappop(times)
            for action, argument in events[now_ns]:  # grows while it runs
                action(argument)
            del events[now_ns]


class Batches:
    """The events of one NPU."""

    __slots__ = ("clock", "_events", "entered_ns")

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._events: dict[int, list[tuple[Action, Any, int]]] = {}
        self.entered_ns = 0
        """when the event that is running was entered"""

    def after(self, delay_ns: int, action: Action, argument: Any) -> None:
        """Calls action(argument) in `delay_ns`."""
        now_ns = self.clock.now_ns
        time_ns = now_ns + delay_ns
        there = self._events.get(time_ns)
        if there is None:
            self.clock.at(time_ns, self._run, time_ns)
            self._events[time_ns] = [(action, argument, now_ns)]
        else:
            there.append((action, argument, now_ns))

    def _run(self, time_ns: int) -> None:
        for action, argument, entered_ns in self._events[time_ns]:  # grows while it runs
            self.entered_ns = entered_ns
            action(argument)
        del self._events[time_ns]
