"""Stragglers and jitter: who is slower, by how much, and that it is the same every time."""

from __future__ import annotations

import dataclasses
import statistics

import pytest

from phantora.cluster import Cluster, JitterSpec, Placement, StragglerSpec, load_cluster
from phantora.cluster.variation import check_stragglers, gpu_factor, host_factor, is_uniform, jittered_ns
from phantora.errors import UserError


def cluster(*stragglers: StragglerSpec, jitter: float = 0.0, seed: int = 0) -> Cluster:
    spec = JitterSpec(relative=jitter, seed=seed)
    return dataclasses.replace(load_cluster("dgx-h100"), straggler=stragglers, jitter=spec)


def test_a_rank_a_node_and_both_at_once() -> None:
    slow = cluster(StragglerSpec(factor=1.5, rank=9), StragglerSpec(factor=2.0, node=1, what="both"))
    placement = Placement(slow, 2, 8)
    assert [gpu_factor(slow, placement, rank) for rank in (0, 8, 9)] == [1.0, 2.0, 3.0]
    assert [host_factor(slow, placement, rank) for rank in (0, 8, 9)] == [1.0, 2.0, 2.0]
    assert is_uniform(cluster()) and not is_uniform(slow)


@pytest.mark.parametrize("straggler", [StragglerSpec(factor=2.0, rank=16), StragglerSpec(factor=2.0, node=2)])
def test_a_straggler_outside_the_run_is_a_mistake(straggler: StragglerSpec) -> None:
    slow = cluster(straggler)
    with pytest.raises(UserError, match="straggler"):
        check_stragglers(slow, Placement(slow, 2, 8))


def test_jitter_has_the_mean_and_the_spread_that_were_asked_for() -> None:
    varied = [jittered_ns(cluster(jitter=0.1), 3, kernel, 100_000) for kernel in range(4000)]
    assert statistics.mean(varied) == pytest.approx(100_000, rel=0.005)
    assert statistics.stdev(varied) == pytest.approx(10_000, rel=0.05)
    assert varied == [jittered_ns(cluster(jitter=0.1), 3, kernel, 100_000) for kernel in range(4000)]
    assert jittered_ns(cluster(jitter=0.1, seed=1), 3, 0, 100_000) != varied[0]
    assert jittered_ns(cluster(), 3, 0, 123) == 123
