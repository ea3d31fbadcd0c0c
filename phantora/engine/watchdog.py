"""Notices ranks that wait for something that the engine cannot see: a lock file, a pipe, a process of their own.

Such a rank counts as running, so virtual time may not pass its clock, while its partner may be blocked beyond it: a hang in
real time. A rank whose processes use no CPU for a while is such a case. Stopped ranks (SIGSTOP) use none either, but may go on.
(/proc only: on other systems nothing is found.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

_IDLE_S = 3.0  # no message and no CPU for this long: the rank waits
_IDLE_ON_ENGINE_S = 0.3  # the same while a thread of its waits for the engine: the main thread waits for that thread
_BUSY_S = 120.0  # no message for this long, though it has a core to itself: it may be polling for what a partner does later
_HOPELESS_S = 120.0  # nothing at all for this long: the run is stuck
_PAUSE_S = 5.0  # the engine itself did not run for this long: it was stopped, and what it knows is old


def ticks_of(pids: Iterable[int]) -> dict[int, int]:
    """CPU time (user + system, in clock ticks) of each of these processes and all below it."""
    stats = _process_stats()
    totals = dict.fromkeys(pids, 0)
    for pid, (_, ticks) in stats.items():
        above = pid
        while above in stats:
            if above in totals:
                totals[above] += ticks
                break
            above = stats[above][0]
    return totals


def _process_stats() -> dict[int, tuple[int, int]]:
    """pid -> (parent, CPU ticks) of all processes. proc(5), /proc/pid/stat: fields 4, 14 and 15."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            fields = _stat_fields(int(name))
            if fields:
                found[int(name)] = (int(fields[1]), int(fields[11]) + int(fields[12]))
    return found


def _stat_fields(pid: int) -> list[bytes]:
    """Of /proc/pid/stat, from the state on; empty when the process has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


class Watchdog:
    """Fed with silence; tells which of the running ranks are idle or stopped."""

    def __init__(self) -> None:
        self._silent_since = self._turn_at = time.monotonic()
        self._ticks: dict[int, tuple[float, int]] = {}
        self._stopped_since: dict[int, float] = {}
        self.recent = True

    def spoke(self) -> None:
        self._silent_since = time.monotonic()
        self._ticks.clear()

    def turn(self) -> None:
        """Call in every turn of the engine's loop."""
        now = time.monotonic()
        if now - self._turn_at > _PAUSE_S:
            self.spoke()
            self._stopped_since.clear()
        self._turn_at = now

    @property
    def silent_s(self) -> float:
        """Seconds since a rank or the launcher last said something."""
        return time.monotonic() - self._silent_since

    def idle(self, running: dict[int, int], on_engine: Iterable[int] = ()) -> list[int]:
        """Of {rank: pid}, those that used no CPU for long enough, or have been silent for _BUSY_S of a core's time.

        on_engine: ranks of which a thread waits for the engine's answer.
        """
        now = time.monotonic()
        self.recent = now - self._silent_since < _IDLE_S
        impatient = frozenset(on_engine)
        if now - self._silent_since < (0.0 if impatient else 1.0):
            return []
        found, ticks = [], ticks_of(running.values())
        busy_s = _BUSY_S * max(1.0, len(running) / len(os.sched_getaffinity(0)))  # 64 ranks that import share the cores
        for rank, pid in running.items():
            if now - self._silent_since > busy_s:
                found.append(rank)
                continue
            since, before = self._ticks.get(rank, (now, -1))
            if ticks[pid] != before:
                self._ticks[rank] = (now, ticks[pid])
            elif now - since >= (_IDLE_ON_ENGINE_S if rank in impatient else _IDLE_S):
                found.append(rank)
        return found

    def stopped(self, processes: dict[int, int]) -> dict[int, float]:
        """Of {rank: pid}, those stopped by a signal, and for how many seconds."""
        now = time.monotonic()
        stopped = [rank for rank, pid in processes.items() if _stat_fields(pid)[:1] == [b"T"]]
        self._stopped_since = {rank: self._stopped_since.get(rank, now) for rank in stopped}
        return {rank: now - since for rank, since in self._stopped_since.items()}

    def hopeless(self, pids: list[int]) -> bool:
        """Whether nothing was said for _HOPELESS_S and no process works."""
        now = time.monotonic()
        if now - self._silent_since < _HOPELESS_S:
            return False
        total = sum(ticks_of(pids).values())
        since, before = self._ticks.get(-1, (now, -1))
        if total != before:
            self._ticks[-1] = (now, total)
            return False
        return now - since >= _IDLE_S * 4
