"""The processes below this one, also those that detached themselves: a run leaves none behind.

A process whose parent has ended goes to its nearest ancestor that declared itself a *subreaper*. Every rank, the warm parent
and the command are subreapers, so whatever a rank started stays below it, however often it forked, and whatever session it is
in. (Linux: prctl(2), PR_SET_CHILD_SUBREAPER; /proc.)
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterable

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_GIVE_UP_S = 2.0  # a process in an uninterruptible system call does not die; the run ends without it


def become_subreaper() -> None:
    """Orphans among the descendants of this process become its children."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int, parent: int | None = None) -> None:
    """Get signal `signum` when the process that started this one ends; parent: its id, when that is known for sure."""
    _prctl(_PR_SET_PDEATHSIG, signum)
    if parent is not None and os.getppid() != parent:
        os._exit(1)  # it has ended already


def outlive_parent() -> None:
    """Undo die_with_parent()."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # elsewhere process groups and the closed control socket do what they can


def children_of(parent: int) -> list[int]:
    """Its living children (no zombies), ascending."""
    return sorted(pid for pid, (above, state) in _processes().items() if above == parent and state not in "ZX")


def zombies_of(parent: int) -> list[int]:
    """Its children that have ended and are not reaped yet, ascending."""
    return sorted(pid for pid, (above, state) in _processes().items() if above == parent and state == "Z")


def descendants_of(root: int, without: Iterable[int] = ()) -> list[int]:
    """Living processes below `root`, ascending; not those of the subtrees of `without`."""
    processes, excluded = _processes(), frozenset(without)
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found, open_ = [], [root]
    while open_:
        below = [pid for pid in children.get(open_.pop(), ()) if pid not in excluded]
        open_ += below
        found += [pid for pid in below if processes[pid][1] not in "ZX"]
    return sorted(found)


def kill_descendants(without: Iterable[int] = ()) -> None:
    """Kill and reap every process below this one except the subtrees of `without`; returns when they are gone."""
    excluded = frozenset(without)
    deadline = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < deadline:
        left = descendants_of(os.getpid(), excluded)
        _reap_children(excluded)
        if not left:
            return
        for pid in left:
            kill(pid)
        time.sleep(0.002)


def _reap_children(without: frozenset[int]) -> None:
    for pid, (parent, state) in _processes().items():
        if parent == os.getpid() and state == "Z" and pid not in without:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _processes() -> dict[int, tuple[int, str]]:
    """pid -> (parent, state letter) of all processes. proc(5), /proc/pid/stat."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except (OSError, ValueError):
                continue  # ended meanwhile
            found[int(name)] = (int(parent), state.decode())
    return found
