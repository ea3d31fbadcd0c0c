"""Stragglers and jitter: how much slower a rank's kernels or host are than the figures of its cluster.

Deterministic: the factor of a kernel depends on the cluster file, the rank and the kernel's number on that rank, not on
the order in which anything is computed.
"""

from __future__ import annotations

import math

from phantora.cluster.placement import Placement
from phantora.cluster.spec import Cluster
from phantora.errors import UserError

_MASK = (1 << 64) - 1


def is_uniform(cluster: Cluster) -> bool:
    """Whether every rank runs at the cluster's own speed, always: then no factor need be asked for."""
    return not cluster.straggler and not cluster.jitter.relative


def gpu_factor(cluster: Cluster, placement: Placement, rank: int) -> float:
    """Times of all kernels of `rank` are multiplied by it ([[straggler]] with what = gpu or both)."""
    return _factor(cluster, placement, rank, "gpu")


def host_factor(cluster: Cluster, placement: Placement, rank: int) -> float:
    """Host time of `rank` is multiplied by it ([[straggler]] with what = host or both)."""
    return _factor(cluster, placement, rank, "host")


def jittered_ns(cluster: Cluster, rank: int, kernel: int, duration_ns: int) -> int:
    """Time of kernel number `kernel` of `rank`, varied by [jitter]: a log-normal factor of mean 1, never negative."""
    relative = cluster.jitter.relative
    if not relative:
        return duration_ns
    sigma_squared = math.log1p(relative**2)
    normal = _normal(cluster.jitter.seed, rank, kernel)
    return round(duration_ns * math.exp(math.sqrt(sigma_squared) * normal - sigma_squared / 2))


def check_stragglers(cluster: Cluster, placement: Placement) -> None:
    """UserError for a [[straggler]] that is not part of the run."""
    for straggler in cluster.straggler:
        if straggler.rank >= placement.world_size:
            last = placement.world_size - 1
            raise UserError(f"{cluster.name}: [[straggler]] rank {straggler.rank}: the run has ranks 0 to {last}")
        if straggler.node >= placement.num_nodes:
            raise UserError(
                f"{cluster.name}: [[straggler]] node {straggler.node}: the run has nodes 0 to {placement.num_nodes - 1}"
            )


def _factor(cluster: Cluster, placement: Placement, rank: int, what: str) -> float:
    node, _ = placement.locate(rank)
    met = (s for s in cluster.straggler if s.rank == rank or s.node == node)
    return math.prod(s.factor for s in met if s.what in (what, "both"))


def _normal(seed: int, rank: int, kernel: int) -> float:
    """A standard normal number that is a fixed function of its arguments (Box and Muller on two hashes)."""
    state = _mix(_mix(_mix(seed & _MASK) ^ rank) ^ kernel)
    first = (state >> 11) + 1
    second = _mix(state) >> 11
    return math.sqrt(-2 * math.log(first / (1 << 53))) * math.cos(2 * math.pi * second / (1 << 53))


def _mix(value: int) -> int:
    """One step of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
