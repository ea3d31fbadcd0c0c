"""Waits of the host, as the columns of a RankTrace hold them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phantora.trace.model import RankTrace


@dataclass(frozen=True, slots=True)
class HostWait:
    """The host of `thread` stood still from begin_ns to end_ns, before row `position`, for the end of `rows`."""

    begin_ns: int
    end_ns: int
    reason: str
    position: int
    thread: Any
    rows: tuple[int, ...]


def append_wait(trace: RankTrace, wait: HostWait, thread: int) -> None:
    """Add one wait; thread: its number in RankTrace.thread."""
    trace.wait_begin_ns.append(wait.begin_ns)
    trace.wait_end_ns.append(wait.end_ns)
    trace.wait_reason.append(wait.reason)
    trace.wait_position.append(wait.position)
    trace.wait_thread.append(thread)
    trace.wait_rows.append(wait.rows)
    trace.wait_peers.append(())
    trace.wait_delay_ns.append(0)
