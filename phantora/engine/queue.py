"""The event queue: the one place where the order of simulated events is decided.

Entries are flat tuples (time_ns, priority, sequence, action). `sequence` comes from what the event *is* (which group, which
collective), never from when its message arrived, so the order, and with it every result, does not depend on how the
operating system scheduled the ranks. It must be unique among events of one time and priority: actions are never compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sortedcontainers import SortedList

# At one instant: what ends first frees its links, then streams get on, then new operations begin.
NETWORK, STREAM, BEGIN = 0, 1, 2

Entry = tuple[int, int, Any, Callable[[int], None]]


class EventQueue:
    """Pending events by (time_ns, priority, sequence).

    A SortedList rather than a heap, because the next completion of the network moves whenever a flow comes or goes.
    """

    def __init__(self) -> None:
        self.now_ns = 0  # everything before has been processed
        self._entries: SortedList[Entry] = SortedList()

    def __len__(self) -> int:
        return len(self._entries)

    def schedule(self, time_ns: int, priority: int, sequence: Any, action: Callable[[int], None]) -> Entry:
        """Add `action(time_ns)`; the returned entry can be cancelled."""
        entry = (time_ns, priority, sequence, action)
        self._entries.add(entry)
        return entry

    def cancel(self, entry: Entry) -> None:
        """Remove a scheduled entry; ValueError when it is not in the queue."""
        self._entries.remove(entry)

    def peek_ns(self) -> int | None:
        """When the next event is due; None when the queue is empty."""
        return self._entries[0][0] if self._entries else None

    def step(self) -> None:
        """Take the next event out and run it."""
        time_ns, _, _, action = self._entries.pop(0)
        assert time_ns >= self.now_ns, "virtual time ran backwards"
        self.now_ns = time_ns
        action(time_ns)
