"""How long each kernel takes in the replay, and how fast each host is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from phantora.cluster import Placement
from phantora.cluster.spec import Cluster
from phantora.cluster.variation import gpu_factor, host_factor, is_uniform, jittered_ns
from phantora.compute.power import GpuPower, gpu_power
from phantora.trace.columns import as_int64
from phantora.trace.model import HOST_DEVICE, RankTrace, Run, SignatureInfo


class Durations:
    """Recorded durations, or prices; then the stragglers and the jitter of the cluster, if the run had none itself.

    power: whose limit lowers the clocks while prices are played; None for recorded times, which have it in them.
    notes: what the report must say.
    """

    def __init__(
        self, run: Run, cluster: Cluster, placement: Placement, reprice: bool, prices: str | None = None
    ) -> None:
        self._run, self._cluster, self._placement = run, cluster, placement
        self.notes: list[str] = []
        self._host_scale = 1.0
        self.signatures: list[SignatureInfo] = list(run.signatures)
        self._is_repriced = reprice
        self._varies = self._must_vary()
        self.power = self._power()
        if reprice:
            from phantora.compute.pricer import price_table
            from phantora.replay.reprice import host_scale, repriced

            self.signatures, notes = repriced(run, cluster, None if prices is None else price_table(prices))
            self._host_scale, more = host_scale(run.cluster, cluster)
            self.notes += [*notes, *more]

    def _must_vary(self) -> bool:
        """Whether the cluster's [[straggler]] and [jitter] tables are still to be applied."""
        source = self._run.cluster
        if isinstance(source, Cluster) and not is_uniform(source) and not self._is_repriced:
            if (source.straggler, source.jitter) != (self._cluster.straggler, self._cluster.jitter):
                self.notes.append(f"recorded times include the stragglers and the jitter of {source.name}")
            return False
        if is_uniform(self._cluster):
            return False
        if not self._is_repriced:
            self.notes.append(f"stragglers and jitter of {self._cluster.name} were applied to recorded times")
        return True

    def _power(self) -> GpuPower | None:
        source = self._run.cluster
        if self._is_repriced:
            return gpu_power(self._cluster.gpu)
        if self._run.contention is not None and isinstance(source, Cluster):
            return gpu_power(source.gpu)
        return None

    def host_factor(self, rank: int) -> float:
        """What the host of `rank` takes longer than it took."""
        return self._host_scale * (host_factor(self._cluster, self._placement, rank) if self._varies else 1.0)

    def slots(self, trace: RankTrace) -> tuple[np.ndarray, list[int], list[int], list[tuple[float, ...]]]:
        """(the engine's signature number of each row, and for each of those: signature in the run, duration in ns, draw)."""
        signature = as_int64(trace.signature)
        is_kernel = signature >= 0
        took = self._took_ns(trace)
        pairs, inverse = np.unique(np.stack((signature[is_kernel], took[is_kernel])), axis=1, return_inverse=True)
        slots = np.zeros(len(signature), np.int64)
        slots[is_kernel] = inverse.reshape(-1)
        numbers, durations = pairs[0].tolist(), pairs[1].tolist()
        priced = [self.signatures[number] for number in numbers]
        draws = [s.draw if s.duration_ns == ns else () for s, ns in zip(priced, durations)]
        return slots, numbers, self._varied(trace.rank)(durations), draws

    def _varied(self, rank: int) -> Callable[[list[int]], list[int]]:
        if not self._varies:
            return list
        factor = gpu_factor(self._cluster, self._placement, rank)
        return lambda took: [jittered_ns(self._cluster, rank, i, round(ns * factor)) for i, ns in enumerate(took)]

    def _took_ns(self, trace: RankTrace) -> np.ndarray:
        """What they took; a run with contention says it in the signatures, others in the times (measured ones only
        there)."""
        signature = as_int64(trace.signature)
        priced = np.array([s.duration_ns for s in self.signatures] or [0], np.int64)[np.maximum(signature, 0)]
        if self._run.contention is not None:
            return priced
        start, end = as_int64(trace.start_ns), as_int64(trace.end_ns)
        took = np.where((start >= 0) & (end >= start), end - start, priced)
        if not self._is_repriced:
            return took
        # Of a simulated kernel that the clock may have slowed, the price says it, not the time that it took.
        is_new = np.array(
            [s.duration_ns != old.duration_ns or bool(old.draw) for s, old in zip(self.signatures, self._run.signatures)]
            or [False]
        )
        return np.where(is_new[np.maximum(signature, 0)] & (as_int64(trace.device) != HOST_DEVICE), priced, took)
