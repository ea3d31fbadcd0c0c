"""A collective and compute on one GPU: hand-computed ends."""

from __future__ import annotations

import pytest

from phantora.cluster import Placement, load_cluster
from phantora.network import CommOperation, NetworkSimulator
from phantora.network.contention import NO_CONTENTION, ContentionModel, merge_intervals
from tiny_clusters import tiny, whole

MODEL = ContentionModel(compute_factor=1.25, collective_factor=2.0)


def test_half_in_company() -> None:
    # 50 alone, then the collective's 100 ns at 1/1.25: 80 of the kernel's work; 20 are left
    assert MODEL.compute_end_ns(0, 150, [(50, 150)]) == 170
    # wholly inside, before, after
    assert MODEL.compute_end_ns(0, 100, [(0, 1000)]) == 125
    assert MODEL.compute_end_ns(0, 100, [(100, 1000)]) == 100
    assert MODEL.compute_end_ns(1000, 100, [(0, 1000)]) == 1100
    assert MODEL.collective_end_ns(0, 100, [(0, 50), (25, 60)]) == 130


def test_none_changes_nothing() -> None:
    assert NO_CONTENTION.compute_end_ns(3, 100, [(0, 50), (60, 70)]) == 103


def test_a_factor_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="compute_factor must be at least 1"):
        ContentionModel(compute_factor=0.9)


def test_overlapping_intervals_are_one() -> None:
    assert merge_intervals([(5, 9), (0, 3), (2, 4), (7, 7)]) == [(0, 4), (5, 9)]


def test_a_slowed_collective_takes_that_many_times_longer() -> None:
    ends = []
    for slowdown in (1.0, 1.9):
        network = NetworkSimulator(tiny(), whole(tiny()))
        network.begin(0, CommOperation(kind="all_gather", ranks=(0, 1, 2, 3), bytes=10**9), 0, slowdown)
        while (now_ns := network.next_ns()) is not None:
            network.advance(now_ns)
        ends.append(network.now_ns)
    assert ends[1] == pytest.approx(1.9 * ends[0], rel=1e-5)


def test_what_goes_over_nics_is_not_slowed() -> None:
    """Two nodes of p4de: 50 GB/s of NICs for eight GPUs, whose own copies run at 230 GB/s, under contention at 120."""
    cluster, ends = load_cluster("p4de"), []
    for slowdown in (1.0, 1.9):
        network = NetworkSimulator(cluster, Placement(cluster, 2, 8))
        network.begin(0, CommOperation(kind="all_gather", ranks=tuple(range(16)), bytes=10**9), 0, slowdown)
        while (now_ns := network.next_ns()) is not None:
            network.advance(now_ns)
        ends.append(network.now_ns)
    assert ends[1] == ends[0]
