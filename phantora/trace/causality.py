"""Checks that a recorded timeline could have happened: used by tests, and on runs of doubtful origin."""

from __future__ import annotations

from phantora.trace.model import RankTrace, Run


def violations(run: Run, limit: int = 20) -> list[str]:
    """Descriptions of what cannot be; empty for a sound run.

    No work before its launch; no two pieces of work of one stream at one time, and in issue order; work that waited for an
    event begins after what it waited for; a collective begins when its last member is there and ends on all at one time.
    """
    found: list[str] = []
    ends: dict[int, set[int]] = {}
    ready: dict[int, list[int]] = {}
    for trace in run.ranks:
        _check_rank(trace, found, limit)
        for row, signature in enumerate(trace.signature):
            if signature < 0:
                for number in trace.work_collectives[-1 - signature]:
                    ready.setdefault(number, []).append(trace.start_ns[row])
                    if len(trace.work_collectives[-1 - signature]) == 1:
                        ends.setdefault(number, set()).add(trace.end_ns[row])
    for number, collective in enumerate(run.collectives):
        if collective.start_ns < 0:
            continue
        if len(ends.get(number, ())) > 1:
            found.append(f"collective {number} ({collective.kind}) ends at different times: {sorted(ends[number])}")
        if number in ready and collective.start_ns < max(ready[number]):
            found.append(f"collective {number} ({collective.kind}) begins at {collective.start_ns}, before a member is ready ({max(ready[number])})")
        if collective.end_ns < collective.start_ns:
            found.append(f"collective {number} ({collective.kind}) ends before it begins")
    return found[:limit]


def _check_rank(trace: RankTrace, found: list[str], limit: int) -> None:
    stream_end: dict[tuple[int, int], int] = {}
    for row in range(len(trace.start_ns)):
        if len(found) >= limit:
            return
        begin, end, key = trace.start_ns[row], trace.end_ns[row], (trace.device[row], trace.stream[row])
        if begin < 0:
            continue
        if begin < trace.issue_ns[row]:
            found.append(f"rank {trace.rank} row {row}: runs at {begin}, launched at {trace.issue_ns[row]}")
        if end < begin:
            found.append(f"rank {trace.rank} row {row}: ends at {end}, before it begins at {begin}")
        if begin < stream_end.get(key, 0):
            found.append(f"rank {trace.rank} row {row}: overlaps the previous work of stream {key}")
        stream_end[key] = end
    for row, earlier in zip(trace.dependent, trace.dependency):
        if 0 <= trace.start_ns[row] < trace.end_ns[earlier]:
            found.append(f"rank {trace.rank} row {row}: begins at {trace.start_ns[row]}, before row {earlier} ends at {trace.end_ns[earlier]}")
