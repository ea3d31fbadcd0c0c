"""How fast one rank is: its cluster's [[straggler]] and [jitter] tables, applied in the rank's own process.

All that a rank's times come from are the durations and host costs of its signatures, and the host costs of its calls:
scaled where they are defined, so neither the native device nor the engine knows of stragglers.
"""

from __future__ import annotations

from phantora.cluster import Placement
from phantora.cluster.spec import Cluster
from phantora.cluster.variation import gpu_factor, host_factor, is_uniform, jittered_ns
from phantora.launch.options import JobOptions


class RankSpeed:
    """The factors of one rank. A kernel's `number` counts the rank's signatures: all launches of one get one factor."""

    def __init__(self, cluster: Cluster, placement: Placement, rank: int) -> None:
        self._cluster, self._rank = cluster, rank
        self._gpu = gpu_factor(cluster, placement, rank)
        self.host = host_factor(cluster, placement, rank)

    def kernel_ns(self, number: int, duration_ns: int) -> int:
        """What a kernel of `duration_ns` takes on this rank."""
        return jittered_ns(self._cluster, self._rank, number, round(duration_ns * self._gpu))

    def host_ns(self, cost_ns: int) -> int:
        """What a host call of `cost_ns` takes on this rank."""
        return round(cost_ns * self.host)


def slow_down(cluster: Cluster, options: JobOptions, rank: int) -> None:
    """Give this process the speed of `rank`, once, before its script runs. Nothing changes in a uniform cluster."""
    if is_uniform(cluster):
        return
    from phantora.intercept import boot, session

    speed = RankSpeed(cluster, Placement(cluster, options.nnodes, options.nproc_per_node), rank)
    session.set_speed(speed)
    boot.set_host_factor(speed.host)
