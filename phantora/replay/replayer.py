"""Plays a run's scripts under the engine: streams, events, collectives and network are those of a live run.

A live rank is a process that sends records and waits for answers; here it is a script per host thread (script, hosts).
Every thread is played as far as it can get, then virtual time takes one step, which may let some of them go on. That is
the live rule (simulation.Simulation.advance) with ranks that never think: none can act before the next event.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from phantora.cluster import Placement
from phantora.cluster.spec import Cluster
from phantora.engine.recording import CLOCK_NOTE, clock_notes
from phantora.engine.simulation import Simulation
from phantora.errors import UserError
from phantora.network import NetworkSimulator
from phantora.network.contention import ContentionModel
from phantora.replay.collectives import announce
from phantora.replay.complete import completed
from phantora.replay.durations import Durations
from phantora.replay.hosts import HostThread, Issued, Points, rests_ns
from phantora.replay.order import issue_order
from phantora.replay.result import replayed_run
from phantora.replay.script import thread_scripts
from phantora.replay.stuck import stuck_text
from phantora.trace.model import RankTrace, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """How a run is replayed."""

    reprice: bool = False
    """Kernels are priced for the cluster's GPU (else they take what they took), hosts are scaled."""
    contention: ContentionModel | None = None
    """As in a live run; None: kernels and collectives of one GPU leave each other alone."""
    prices: str | None = None
    """A table of `phantora calibrate` for `reprice`; None: the shipped one."""
    nproc_per_node: int | None = None
    """Ranks on each node; None: as recorded, or as many as the nodes have GPUs when that is not known."""


def replay(run: Run, cluster: Cluster, options: ReplayOptions = ReplayOptions()) -> Run:
    """`run` as it would have gone on `cluster`. UserError: it does not fit there, or can never end."""
    started = time.monotonic()
    _check(run)
    run = replace(run, ranks=[completed(trace) for trace in run.ranks])
    placement = placed(run, cluster, options.nproc_per_node)
    durations = Durations(run, cluster, placement, options.reprice, options.prices)
    replayer = _Replayer(run, NetworkSimulator(cluster, placement, os.environ), durations, options.contention)
    replayer.play()
    result = replayed_run(
        run, replayer.simulation, replayer.collectives, replayer.played, cluster, placement, durations
    )
    _note_contention(result, options.contention)
    if durations.power is not None:
        others = [note for note in result.notes if not note.startswith(CLOCK_NOTE)]
        result.notes = [*others, *clock_notes(replayer.simulation)]
    _note_memory(result, cluster)
    result.wall_s = time.monotonic() - started
    return result


def placed(run: Run, cluster: Cluster, nproc_per_node: int | None = None) -> Placement:
    """Where the ranks sit. UserError, with the numbers, when the cluster is too small."""
    if run.world_size > cluster.num_gpus:
        raise UserError(
            f"{cluster.name} has {cluster.num_gpus} GPUs ({cluster.num_nodes} x {cluster.gpus_per_node}), the run has "
            f"{run.world_size} ranks"
        )
    if nproc_per_node is not None:
        if run.world_size % nproc_per_node:
            raise UserError(
                f"--nproc-per-node {nproc_per_node}: the run has {run.world_size} ranks, which it does not divide"
            )
        return Placement(cluster, run.world_size // nproc_per_node, nproc_per_node)
    wanted = run.nproc_per_node or cluster.gpus_per_node
    per_node = min(wanted, cluster.gpus_per_node, run.world_size)
    if run.world_size % per_node or run.world_size // per_node > cluster.num_nodes:
        per_node = next(n for n in range(min(cluster.gpus_per_node, run.world_size), 0, -1) if not run.world_size % n)
    return Placement(cluster, run.world_size // per_node, per_node)


def _note_contention(run: Run, model: ContentionModel | None) -> None:
    notes = [note for note in run.notes if not note.startswith("contention: ")]
    run.contention = None if model is None else (model.compute_factor, model.collective_factor)
    run.notes = notes if model is None else [*notes, model.described]


def _note_memory(run: Run, cluster: Cluster) -> None:
    """The allocator's decisions are those of the recording: a GPU with less memory would have run out of it."""
    peak_bytes, rank = max(((max(trace.reserved_bytes, default=0), -trace.rank) for trace in run.ranks), default=(0, 0))
    if peak_bytes > cluster.gpu.visible_memory_bytes:
        run.notes.append(
            f"it would not fit: rank {-rank} needed {peak_bytes / 2**30:.2f} GiB when it was recorded, "
            f"{cluster.gpu.name} has {cluster.gpu.visible_memory_bytes / 2**30:.2f} GiB for programs"
        )


def _check(run: Run) -> None:
    if not run.complete:
        raise UserError(
            f"the run did not end well and cannot be replayed: {(run.error or 'it was ended early').splitlines()[0]}"
        )
    if [trace.rank for trace in run.ranks] != list(range(run.world_size)):
        there = [trace.rank for trace in run.ranks]
        missing = sorted(set(range(run.world_size)) - set(there))
        raise UserError(
            f"the run has {run.world_size} ranks, but there are {len(there)} traces (missing ranks: {missing})"
        )


@dataclass(slots=True)
class PlayedRank:
    """rows: recorded row of each row of the engine; waits: when each wait began and ended."""

    rows: np.ndarray
    wait_begin_ns: list[int]
    wait_end_ns: list[int]
    factor: float


class _Replayer:
    def __init__(self, run: Run, network: Any, durations: Durations, contention: ContentionModel | None) -> None:
        self.run = run
        self.simulation = Simulation(run.world_size, network, lambda rank, message: None, contention, durations.power)
        self.simulation.signatures = run.signatures
        self.collectives = announce(run, self.simulation)
        self._ready: deque[HostThread] = deque()
        self._points = Points(run.ranks)
        self._issued = [Issued() for _ in run.ranks]
        self._waits: list[tuple[list[int], list[int]]] = []
        self._factors = [durations.host_factor(trace.rank) for trace in run.ranks]
        self._threads = [thread for trace in run.ranks for thread in self._host_threads(trace, durations)]

    def _host_threads(self, trace: RankTrace, durations: Durations) -> list[HostThread]:
        timeline, order = self.simulation.ranks[trace.rank].timeline, issue_order(trace)
        slots, timeline.signatures, timeline.durations, timeline.draws = durations.slots(trace)
        scripts = thread_scripts(self.run, trace, order, slots)
        begin, end = [-1] * len(trace.wait_reason), [-1] * len(trace.wait_reason)
        self._waits.append((begin, end))
        rests = rests_ns(trace, self.run.ranks)
        threads = [
            HostThread(
                trace, script, timeline, self._issued[trace.rank], self._points, rests, begin, end, self._ready,
                self._factors[trace.rank],
            )
            for script in scripts
        ]  # fmt: skip
        if len(threads) > 1:
            for thread in threads:
                thread.watch()
        return threads

    @property
    def played(self) -> list[PlayedRank]:
        """What happened to each rank."""
        return [
            PlayedRank(np.concatenate(issued.rows) if issued.rows else np.empty(0, np.int64), begin, end, factor)
            for issued, (begin, end), factor in zip(self._issued, self._waits, self._factors)
        ]

    def play(self) -> None:
        """To the end. UserError when something can never happen."""
        queue, ready = self.simulation.queue, self._ready
        ready.extend(self._threads)
        while True:
            while ready:
                ready.popleft().run()
            if not len(queue):
                break
            queue.step()
        self.simulation.close()
        stuck = [thread for thread in self._threads if thread.stopped_at is not None]
        if stuck or any(collective.end_ns < 0 for collective in self.collectives):
            raise UserError(stuck_text(self.run, self.collectives, self.played, self.simulation, stuck))
