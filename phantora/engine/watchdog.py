"""Notices ranks that wait for something that the engine cannot see: a lock file, a pipe, a process of their own.

Such a rank counts as running, so virtual time may not pass its clock, while its partner may be blocked beyond it: a hang in
real time. A rank whose processes use no CPU for a while is such a case. (/proc only: on other systems nothing is found.)
"""

from __future__ import annotations

import os
import time

_IDLE_S = 3.0  # no message and no CPU for this long: the rank waits
_BUSY_S = 120.0  # no message for this long, though it uses CPU: it may be polling for what a partner does later
_HOPELESS_S = 120.0  # nothing at all for this long: the run is stuck


def cpu_ticks(group: int) -> int:
    """CPU time (user + system, in clock ticks) of all processes of process group `group`."""
    total = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[2]) == group:
            total += int(fields[11]) + int(fields[12])
    return total


class Watchdog:
    """Fed with silence; tells which of the running ranks are idle."""

    def __init__(self) -> None:
        self._silent_since = time.monotonic()
        self._ticks: dict[int, tuple[float, int]] = {}
        self.recent = True

    def spoke(self) -> None:
        self._silent_since = time.monotonic()
        self._ticks.clear()

    def idle(self, running: dict[int, int]) -> list[int]:
        """Of {rank: pid} (each the leader of its process group), those that used no CPU for _IDLE_S or are silent for _BUSY_S."""
        now = time.monotonic()
        self.recent = now - self._silent_since < _IDLE_S
        if now - self._silent_since < 1.0:
            return []
        found = []
        for rank, pid in running.items():
            ticks = cpu_ticks(pid)
            if now - self._silent_since > _BUSY_S:
                found.append(rank)
                continue
            since, before = self._ticks.get(rank, (now, -1))
            if ticks != before:
                self._ticks[rank] = (now, ticks)
            elif now - since >= _IDLE_S:
                found.append(rank)
        return found

    def hopeless(self, pids: list[int]) -> bool:
        """Whether nothing was said for _HOPELESS_S and no process works."""
        now = time.monotonic()
        if now - self._silent_since < _HOPELESS_S:
            return False
        total = sum(cpu_ticks(pid) for pid in pids)
        since, before = self._ticks.get(-1, (now, -1))
        if total != before:
            self._ticks[-1] = (now, total)
            return False
        return now - since >= _IDLE_S * 4
