"""Why ASTRA-sim's time of a run may differ from ours: what its model lacks, as far as the run at hand uses it.

Source: ASTRA-sim 518bd513 (analytical network), docs/traces.md.
"""

from __future__ import annotations

import numpy as np

from phantora.report.breakdown import total, union
from phantora.report.units import time_text
from phantora.trace.columns import as_int64, finished_rows
from phantora.trace.model import RankTrace, Run

_STAND_INS = {"broadcast": "all-gathers", "reduce": "reduce-scatters", "barrier": "small all-reduces"}


def reasons(run: Run, is_aware: bool, is_copy: bool) -> tuple[str, ...]:
    """Sentences, those that apply."""
    found = [_overlaps(run), _algorithms(run), _stand_ins(run), _small_groups(run), _network(run, is_aware), _host(run)]
    if any(info.bytes < 1 << 20 for info in run.collectives if len(info.ranks) > 1):
        found.append(
            "small messages: NCCL's own latencies (its protocols, its steps) are in our times; ASTRA-sim has the "
            "latency of the links and 10 ns per message"
        )
    found.append("kernels take whole microseconds in the traces, and at least 1 ns")
    if is_copy:
        found.append(
            "ASTRA-sim itself was not run: the times are those of our copy of its semantics (--astra-sim PATH runs it)"
        )
    return tuple(text for text in found if text)


def _overlaps(run: Run) -> str:
    kernels = max((_overlap_ns(run, trace, communication=False) for trace in run.ranks), default=0)
    communication = max((_overlap_ns(run, trace, communication=True) for trace in run.ranks), default=0)
    parts = [f"{what} for {time_text(ns)}" for what, ns in (("kernels", kernels), ("collectives", communication)) if ns]
    if not parts:
        return ""
    return (
        f"no streams: on one rank {' and '.join(parts)} ran at the same time; ASTRA-sim runs them one after the other"
    )


def _overlap_ns(run: Run, trace: RankTrace, communication: bool) -> int:
    """Sum of the durations less their union."""
    rows = finished_rows(trace)
    rows = rows[(as_int64(trace.signature)[rows] < 0) == communication]
    start, end = as_int64(trace.start_ns)[rows], as_int64(trace.end_ns)[rows]
    if communication:  # from the arrival of the last member on: a waiting kernel moves nothing
        works = [trace.work_collectives[-1 - number] for number in as_int64(trace.signature)[rows].tolist()]
        arrival = np.array([max((run.collectives[c].start_ns for c in parts), default=0) for parts in works], np.int64)
        start = np.clip(arrival, start, end)
    return int((end - start).sum()) - total(union(start, end))


def _algorithms(run: Run) -> str:
    used = sorted(
        {info.algorithm.partition("/")[0].strip() for info in run.collectives if len(info.ranks) > 1 and info.algorithm}
    )
    others = [name for name in used if name not in ("ring", "p2p", "direct", "copy")]
    if not others:
        return ""
    return f"NCCL's tuner took {', '.join(others)} for some collectives; the configuration has a ring in each dimension"


def _stand_ins(run: Run) -> str:
    kinds = sorted({info.kind for info in run.collectives} & _STAND_INS.keys())
    return (
        f"kinds that ASTRA-sim lacks: {', '.join(f'{kind}s run as {_STAND_INS[kind]}' for kind in kinds)}"
        if kinds
        else ""
    )


def _small_groups(run: Run) -> str:
    crossing = [
        info for info in run.collectives if 1 < len(info.ranks) < run.world_size and _is_diagonal(run, info.ranks)
    ]
    if not crossing:
        return ""
    return (
        f"{len(crossing):,} collectives of groups with neighbours that differ in node and place: ASTRA-sim runs them "
        "as one ring and charges each message by the first dimension in which its ends differ, so that those go "
        "between nodes at the rate of NVLink"
    )


def _is_diagonal(run: Run, ranks: tuple[int, ...]) -> bool:
    """Whether two neighbours of the ring are on different nodes and at different places of their nodes."""
    per_node, ring = max(run.nproc_per_node, 1), sorted(ranks)
    pairs = zip(ring, [*ring[1:], ring[0]])
    return any(a // per_node != b // per_node and a % per_node != b % per_node for a, b in pairs)


def _network(run: Run, is_aware: bool) -> str:
    if is_aware:
        return (
            "with congestion ASTRA-sim has one dimension: all messages go over one switch at the rate of the slowest "
            "link, and pay it twice (into the switch and out of it)"
        )
    return "no congestion: messages that share a link each have its full rate"


def _host(run: Run) -> str:
    if any(len(trace.wait_begin_ns) for trace in run.ranks):
        return (
            "the host is a chain of fixed gaps: where it waited for less (or more), ASTRA-sim's gaps stay as they were"
        )
    return ""
