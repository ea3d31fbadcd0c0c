"""The run's collectives for the engine's matcher: announced by all members before anything is played."""

from __future__ import annotations

from typing import Any

from phantora.engine.collectives import Collective, Member, Part
from phantora.engine.simulation import Simulation
from phantora.errors import UserError
from phantora.replay.order import node_name
from phantora.trace.model import CollectiveInfo, Run

_SHOWN = 8


def announce(run: Run, simulation: Simulation) -> list[Collective]:
    """Fill `simulation` so that the launch of communication row r is call r of its rank. UserError for missing
    members."""
    collectives = _collectives(run)
    for trace in run.ranks:
        calls = simulation.ranks[trace.rank].timeline.collective_calls
        for row, signature in enumerate(trace.signature):
            if signature >= 0:
                continue
            parts = []
            for number in trace.work_collectives[-1 - signature]:
                collective = collectives[number]
                _check_member(run, collective, trace.rank, number, row)
                member = Member(trace.rank, _part(run.collectives[number], trace.rank), run.collectives[number].stack)
                collective.members[trace.rank] = member
                parts.append(Part(collective, member))
            if not parts:
                raise UserError(f"rank {trace.rank} {node_name(trace, row)}: communication without a collective")
            calls[row] = parts
    _check_complete(run, collectives)
    for collective in collectives:
        simulation.matcher.open[collective.key] = collective
    return collectives


def _collectives(run: Run) -> list[Collective]:
    """As the matcher names them: numbered within their communicator, a message within its pair of ranks.

    Numbers in a run ascend with those of their communicator, so the keys order simultaneous events as they did live.
    """
    counts: dict[tuple[Any, ...], int] = {}
    found = []
    for info in run.collectives:
        group = run.groups[info.group]
        kind = (1, *info.ranks) if info.kind == "send_recv" else (0, 0, 0)
        line = (tuple(group.ranks), group.name, *kind)
        counts[line] = counts.get(line, -1) + 1
        found.append(Collective((*line, counts[line]), tuple(dict.fromkeys(info.ranks)), group.name))
    return found


def _part(info: CollectiveInfo, rank: int) -> dict[str, Any]:
    part: dict[str, Any] = {"kind": info.kind, "bytes": info.bytes, "dtype": info.dtype, "root": info.root}
    if info.split_bytes is not None and rank in info.ranks:
        part["splits_in"] = info.split_bytes[info.ranks.index(rank)]
    return part


def _check_member(run: Run, collective: Collective, rank: int, number: int, row: int) -> None:
    name = node_name(run.ranks[rank], row)
    if rank not in collective.ranks:
        raise UserError(
            f"rank {rank} {name}: takes part in {collective_name(run, number)}, to which it does not belong"
        )
    if rank in collective.members:
        raise UserError(f"rank {rank} {name}: takes part in {collective_name(run, number)} a second time")


def _check_complete(run: Run, collectives: list[Collective]) -> None:
    problems = []
    rows = None
    for number, collective in enumerate(collectives):
        missing = collective.missing()
        if not missing:
            continue
        rows = rows or member_rows(run)
        there = [f"rank {rank} {node_name(run.ranks[rank], rows[rank, number])}" for rank in sorted(collective.members)]
        absent = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
        waiting = f"{', '.join(there) or 'nobody'} {'wait' if len(there) > 1 else 'waits'}"
        problems.append(f"{collective_name(run, number)}: {waiting} for {absent} for ever")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise UserError("unmatched communication: " + "; ".join(problems[:_SHOWN]) + more)


def member_rows(run: Run) -> dict[tuple[int, int], int]:
    """(rank, collective) -> row."""
    return {
        (trace.rank, number): row
        for trace in run.ranks
        for row, signature in enumerate(trace.signature)
        if signature < 0
        for number in trace.work_collectives[-1 - signature]
    }


def collective_name(run: Run, number: int) -> str:
    """'all_reduce 4 of group tp' or 'message 7 from rank 0 to rank 1'."""
    info = run.collectives[number]
    if info.kind == "send_recv":
        return f"message {number} from rank {info.ranks[0]} to rank {info.ranks[-1]}"
    return f"{info.kind} {number} of group {run.groups[info.group].name!r}"
