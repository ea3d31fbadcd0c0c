"""What is said when a replay cannot end: who waits for whom, by rank and node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phantora.engine.collectives import Collective
from phantora.engine.simulation import Simulation
from phantora.replay.collectives import collective_name, member_rows
from phantora.replay.hosts import HostThread
from phantora.replay.order import node_name
from phantora.replay.script import HostWait
from phantora.trace.model import Run

if TYPE_CHECKING:
    from phantora.replay.replayer import PlayedRank

_SHOWN = 6


def stuck_text(
    run: Run, collectives: list[Collective], played: list[PlayedRank], simulation: Simulation, stuck: list[HostThread]
) -> str:
    """One message: collectives that some members have reached and others never will, then hosts that wait."""
    rows = member_rows(run)
    lines = []
    for number, collective in enumerate(collectives):
        there = [rank for rank, member in sorted(collective.members.items()) if member.ready_ns >= 0]
        if collective.end_ns < 0 and there:
            named = [f"rank {rank} ({node_name(run.ranks[rank], rows[rank, number])})" for rank in there]
            away = [
                f"rank {rank} ({node_name(run.ranks[rank], rows[rank, number])})"
                for rank in collective.ranks
                if rank not in there
            ]
            lines.append(f"{collective_name(run, number)}: {_some(named)} wait for {_some(away)}")
    for thread in stuck:
        lines.append(f"host of rank {thread.rank}: {_host_text(run, thread)}")
    if not lines:
        unreached = [collective_name(run, n) for n, c in enumerate(collectives) if c.end_ns < 0]
        lines = [f"{_some(unreached)} can never begin"]
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "deadlock: " + "; ".join(lines[:_SHOWN]) + more


def _host_text(run: Run, thread: HostThread) -> str:
    step, trace = thread.stopped_at, run.ranks[thread.rank]
    if not isinstance(step, HostWait):
        return f"thread {thread.number} is held up by another thread"
    rows = [node_name(trace, row) for row in trace.wait_rows[step.entry]]
    peers = [f"the host of rank {rank}" for rank, _ in trace.wait_peers[step.entry]]
    return f"{trace.wait_reason[step.entry]} waits for {_some(rows + peers)}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
