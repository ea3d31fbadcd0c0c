"""What a part of the ranks of a job can keep of it: ranks counted from 0, and collectives of which no part is missing.

A replay needs every part of a collective. Where ranks have no trace, or captures were cut differently, the parts that
are there become work that takes what it took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from phantora.importers.kineto_match import Matched
from phantora.importers.report import ImportReport
from phantora.trace.model import RankTrace

FAMILY = "communication"
_SHOWN_RANKS = 16


def split(matched: Sequence[Matched], present: Sequence[int]) -> tuple[list[Matched], list[Matched]]:
    """(collectives of which every part is there, the others). present: the ranks that have a trace."""
    there = set(present)
    whole, cut = [], []
    for collective in matched:
        is_whole = there.issuperset(collective.ranks) and len(collective.parts) == len(collective.ranks)
        (whole if is_whole else cut).append(collective)
    return whole, cut


def tell(cut: Sequence[Matched], present: Sequence[int], times: str, report: ImportReport) -> None:
    """Count the parts of `cut` in the report. times: what they take, for the text ('of their duration')."""
    there = set(present)
    for collective in cut:
        where = f"{collective.kind} of group {collective.group or '(unnamed)'}, {len(collective.ranks)} ranks"
        if there.issuperset(collective.ranks):
            what = f"collectives that some of their ranks' traces lack: as work {times}"
        else:
            what = f"collectives whose other ranks have no trace: as work {times}"
        report.guess(what, where, len(collective.parts))


def renumber(
    traces: Sequence[RankTrace], whole: Sequence[Matched], world_size: int, report: ImportReport
) -> list[Matched]:
    """Count the ranks of `traces` (in ascending order) from 0, also in `whole`, which is returned anew; tell it."""
    old = [trace.rank for trace in traces]
    if world_size > len(old):
        report.note(f"{len(old)} of {world_size} ranks are in the import: the run has these alone")
    numbers = {rank: number for number, rank in enumerate(old)}
    if any(rank != number for rank, number in numbers.items()):
        report.note(f"ranks counted anew from 0: they were {_shown(old)}")
    for trace, number in zip(traces, numbers.values()):
        trace.rank = number
    return [_renumbered(collective, numbers) for collective in whole]


def _renumbered(collective: Matched, numbers: Mapping[int, int]) -> Matched:
    ranks = tuple(numbers[rank] for rank in collective.ranks)
    parts = {
        numbers[rank]: replace(part, ranks=(), peer=numbers.get(part.peer, -1))
        for rank, part in collective.parts.items()
    }
    return Matched(collective.kind, collective.group, ranks, parts)


def _shown(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_SHOWN_RANKS])) + (", ..." if len(ranks) > _SHOWN_RANKS else "")


def ranks_per_node(ranks: Sequence[int], gpus: int, report: ImportReport) -> int:
    """How many of `ranks` share a node, when the job had `gpus` on each (0: not known, taken for one node)."""
    if not gpus:
        return len(ranks)
    counts = Counter(rank // gpus for rank in ranks)
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    if list(ranks) != list(range(len(ranks))):
        report.guess("nodes with different numbers of the ranks that are there: filled in order", _shown(ranks))
    return min(gpus, len(ranks))
