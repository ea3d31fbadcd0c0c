"""One clock for all ranks. Members of a collective end together: that tells how far their clocks are apart."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

from phantora.importers.kineto_match import Matched
from phantora.importers.report import ImportReport
from phantora.trace.model import RankTrace

_COMMON_NS = 50_000  # less is the spread of ends, not of clocks
_FEW = 2  # collectives; fewer say nothing


def clock_offsets(traces: Mapping[int, RankTrace], matched: list[Matched], report: ImportReport) -> dict[int, int]:
    """Rank -> nanoseconds by which its clock is ahead of the ranks' common one; 0 where clocks look common."""
    late: dict[int, list[int]] = {rank: [] for rank in traces}
    for collective in matched:
        if len(collective.parts) < 2 or collective.kind == "send_recv":
            continue
        ends = {rank: traces[rank].end_ns[part.row] for rank, part in collective.parts.items()}
        middle = median_low(ends.values())
        for rank, end in ends.items():
            late[rank].append(end - middle)
    offsets = {rank: median_low(found) if len(found) >= _FEW else 0 for rank, found in late.items()}
    if len(traces) < 2:
        return offsets
    largest = max(map(abs, offsets.values()))
    lonely = [rank for rank, found in late.items() if len(found) < _FEW]
    if lonely:
        shown = ", ".join(map(str, lonely[:8])) + (", ..." if len(lonely) > 8 else "")
        report.note(f"clocks of ranks {shown}: too few common collectives to compare them; taken as they are")
    if largest <= _COMMON_NS:
        report.note(f"ranks share a clock: their collectives end within {largest / 1000:.1f} us of each other (median)")
        return dict.fromkeys(offsets, 0)
    report.note(
        f"ranks' clocks are up to {largest / 1000:.1f} us apart: aligned so that collectives end together (median)"
    )
    return offsets
