"""The replayed run: the recorded one with new times."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from phantora.cluster import Placement
from phantora.cluster.spec import Cluster
from phantora.engine.collectives import Collective
from phantora.engine.simulation import Simulation
from phantora.replay.durations import Durations
from phantora.trace.columns import as_int64
from phantora.trace.model import RankTrace, Run

if TYPE_CHECKING:
    from phantora.replay.replayer import PlayedRank


def replayed_run(
    run: Run, simulation: Simulation, collectives: list[Collective], played: list[PlayedRank], cluster: Cluster,
    placement: Placement, durations: Durations,
) -> Run:  # fmt: skip
    """A Run of its own; what the replay does not change is shared with the recorded one."""
    ranks = [_rank(trace, simulation.ranks[trace.rank].timeline.trace, played[trace.rank]) for trace in run.ranks]
    return replace(
        run,
        cluster=cluster,
        nproc_per_node=placement.nproc_per_node,
        signatures=durations.signatures,
        collectives=[
            replace(info, start_ns=c.start_ns, end_ns=c.end_ns, algorithm=str(c.algorithm))
            for info, c in zip(run.collectives, collectives)
        ],
        ranks=ranks,
        virtual_ns=max((max(t.host_end_ns, max(t.end_ns, default=0)) for t in ranks), default=0),
        notes=[*run.notes, *durations.notes],
        source="replayed",
    )


def _rank(trace: RankTrace, engine: RankTrace, played: PlayedRank) -> RankTrace:
    result = copy(trace)
    for name in ("start_ns", "end_ns", "issue_ns"):
        column = np.empty(len(trace.signature), np.int64)
        column[played.rows] = as_int64(getattr(engine, name))
        setattr(result, name, array("q", column.tobytes()))
    result.wait_begin_ns, result.wait_end_ns = array("q", played.wait_begin_ns), array("q", played.wait_end_ns)
    clocks = {thread: _Clock(trace, played, thread) for thread in {0, *trace.wait_thread, *trace.memory_thread}}
    main = clocks[0]
    result.mark_ns = array("q", map(main.new_ns, trace.mark_ns))
    threads = trace.memory_thread if len(trace.memory_thread) == len(trace.memory_ns) else [0] * len(trace.memory_ns)
    result.memory_ns = array("q", (clocks[thread].new_ns(ns) for thread, ns in zip(threads, trace.memory_ns)))
    result.host_end_ns = main.new_ns(trace.host_end_ns)
    return result


class _Clock:
    """From the recorded clock of a host thread to its new one: between two waits, all is shifted by the same."""

    def __init__(self, trace: RankTrace, played: PlayedRank, thread: int) -> None:
        entries = [entry for entry, other in enumerate(trace.wait_thread) if other == thread]
        self._old = [0, *(trace.wait_end_ns[entry] for entry in entries)]
        self._new = [0, *(played.wait_end_ns[entry] for entry in entries)]
        self._factor = played.factor

    def new_ns(self, old_ns: int) -> int:
        index = bisect_right(self._old, old_ns) - 1
        passed_ns = old_ns - self._old[index]
        return self._new[index] + (passed_ns if self._factor == 1.0 else round(passed_ns * self._factor))
