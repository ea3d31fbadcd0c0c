"""A host thread that plays its script: its clock runs on with the recorded differences, and stands still where it
waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from phantora.engine.timeline import Event, RankTimeline
from phantora.replay.script import Gate, HostWait, Issue, ThreadScript
from phantora.trace.model import RankTrace


class Points:
    """Entries of wait columns that hosts (of any rank) wait for: an Event for each, known when its thread has got
    there."""

    def __init__(self, ranks: list[RankTrace]) -> None:
        self._events = {peer: Event() for trace in ranks for peers in trace.wait_peers for peer in peers}

    def __getitem__(self, peer: tuple[int, int]) -> Event:
        return self._events[peer]

    def reach(self, peer: tuple[int, int], time_ns: int) -> None:
        """The entry ended at time_ns."""
        event = self._events.get(peer)
        if event is not None:
            event.resolve(time_ns)


class Issued:
    """Rows of one rank in the order in which its threads issued them, and threads that wait for one to be issued."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self._is_issued: set[int] = set()
        self._waiters: dict[int, list[Callable[[], None]]] = {}

    def add(self, rows: np.ndarray, are_watched: bool) -> None:
        self.rows.append(rows)
        if are_watched:
            for row in rows.tolist():
                self._is_issued.add(row)
                for waiter in self._waiters.pop(row, ()):
                    waiter()

    def when(self, row: int, waiter: Callable[[], None]) -> bool:
        """True: it is. False: `waiter` will be called."""
        if row in self._is_issued:
            return True
        self._waiters.setdefault(row, []).append(waiter)
        return False


class HostThread:
    """Plays one thread. factor: how many times longer the host takes for everything than when it was recorded.

    new_begin_ns, new_end_ns: of the rank's waits, filled as they happen (shared by the rank's threads).
    """

    def __init__(
        self, trace: RankTrace, script: ThreadScript, timeline: RankTimeline, issued: Issued, points: Points,
        rests_ns: list[int], new_begin_ns: list[int], new_end_ns: list[int], ready: deque[HostThread], factor: float,
    ) -> None:  # fmt: skip
        self.rank, self.number = trace.rank, script.number
        self._trace, self._steps, self._timeline = trace, script.steps, timeline
        self._issued, self._points, self._rests_ns = issued, points, rests_ns
        self._new_begin_ns, self._new_end_ns = new_begin_ns, new_end_ns
        self._ready, self._factor = ready, factor
        self._next = 0
        self._old_ns = self._new_ns = 0  # one moment on the recorded clock and on this one
        self._latest_ns, self._num_missing, self._is_waiting = -1, 0, False
        self._is_watched = False
        self._has_begun = script.number == 0

    def watch(self) -> None:
        """Other threads of the rank may wait for what this one issues."""
        self._is_watched = True

    @property
    def stopped_at(self) -> HostWait | Gate | None:
        """What it waits for; None when it has played everything."""
        step = self._steps[self._next] if self._next < len(self._steps) else None
        assert not isinstance(step, Issue)
        return step

    def run(self) -> None:
        """Play on to the next step that cannot be passed yet."""
        while self._next < len(self._steps):
            step = self._steps[self._next]
            if isinstance(step, Issue):
                self._issue(step)
            elif isinstance(step, HostWait):
                if not self._wait(step.entry):
                    return
            elif not self._issued.when(step.row, lambda: self._ready.append(self)):
                return
            self._next += 1

    def clock_ns(self, old_ns: int) -> int:
        """The recorded moment `old_ns` (after the latest wait) on this clock."""
        passed_ns = old_ns - self._old_ns
        return self._new_ns + (passed_ns if self._factor == 1.0 else round(passed_ns * self._factor))

    def _issue(self, step: Issue) -> None:
        records = step.records.copy()
        if self._factor == 1.0:
            records["host_ns"] += self._new_ns - self._old_ns
        else:
            passed_ns = records["host_ns"] - self._old_ns
            records["host_ns"] = self._new_ns + np.rint(passed_ns * self._factor).astype(np.int64)
        self._timeline.process(records.tobytes())
        self._issued.add(step.rows, self._is_watched)

    def _wait(self, entry: int) -> bool:
        """Whether wait `entry` is over; if not, this thread is made ready when it is."""
        if not self._is_waiting:
            self._latest_ns, self._num_missing, self._is_waiting = -1, 1, True
            for row in self._trace.wait_rows[entry]:
                self._num_missing += 1
                self._timeline.events[row].when_known(self._known)
            for peer in self._trace.wait_peers[entry]:
                self._num_missing += 1
                self._points[peer].when_known(self._known)
            self._num_missing -= 1
            if self._num_missing:
                return False
        self._is_waiting = False
        self._pass(entry)
        return True

    def _known(self, time_ns: int) -> None:
        self._latest_ns = max(self._latest_ns, time_ns)
        self._num_missing -= 1
        if not self._num_missing:
            self._ready.append(self)

    def _pass(self, entry: int) -> None:
        trace = self._trace
        begin_ns = self.clock_ns(trace.wait_begin_ns[entry])
        if self._latest_ns >= 0:
            due_ns = self._latest_ns + trace.wait_delay_ns[entry]
            if not self._has_begun:  # the first entry of a thread: it begins when its starter says so
                begin_ns = due_ns
            end_ns = max(begin_ns, due_ns) + self._rests_ns[entry]
        else:
            end_ns = begin_ns + self._rests_ns[entry]
        self._has_begun = True
        self._new_begin_ns[entry], self._new_end_ns[entry] = begin_ns, end_ns
        self._old_ns, self._new_ns = trace.wait_end_ns[entry], end_ns
        self._points.reach((self.rank, entry), end_ns)


def rests_ns(trace: RankTrace, ranks: list[RankTrace]) -> list[int]:
    """How much later than its rows, peers and own clock explain each wait of a rank ended when it was recorded."""
    rests = []
    for entry, (begin_ns, end_ns) in enumerate(zip(trace.wait_begin_ns, trace.wait_end_ns)):
        ends = [trace.end_ns[row] for row in trace.wait_rows[entry]]
        ends += [ranks[rank].wait_end_ns[peer] for rank, peer in trace.wait_peers[entry]]
        due_ns = max(ends) + trace.wait_delay_ns[entry] if ends else begin_ns
        is_known = all(end >= 0 for end in ends)
        rests.append(max(end_ns - max(begin_ns, due_ns), 0) if is_known else 0)
    return rests
