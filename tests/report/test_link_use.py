"""Counters of links: the area below a curve is what the algorithm moves, whatever overlaps."""

import numpy as np
import pytest
from made_up_run import Builder

from phantora.cluster import Placement, load_cluster
from phantora.network import CommOperation, exclusive_ns
from phantora.report.link_use import link_counters

GIB = 1 << 30


def counters(builder, cluster="dgx-h100", per_node=None):
    """(rank, name) -> series of the finished run on that cluster."""
    run = builder.finish()
    run.cluster = load_cluster(cluster)
    run.nproc_per_node = per_node or run.world_size
    return {(series.rank, series.name): series for series in link_counters(run, range(run.world_size))}


def moved_bytes(series):
    """The area below the curve."""
    assert series.values[-1] == 0 and series.times_ns[0] == 0
    return float((series.values[:-1] * np.diff(series.times_ns)).sum())


def test_a_ring_all_reduce_moves_twice_n_minus_one_nths():
    b = Builder(8)
    b.collective("all_reduce", GIB, 5000.0, stream=7, algorithm="ring/Simple")
    found = counters(b)
    assert set(found) == {(rank, f"NVLink {way}") for rank in range(8) for way in ("out", "in")}
    for series in found.values():
        assert moved_bytes(series) == pytest.approx(2 * 7 / 8 * GIB, rel=1e-6)
        assert series.values.tolist() == pytest.approx([0, 2 * 7 / 8 * GIB / 5e6, 0])


def test_between_nodes_each_card_carries_its_rail():
    b = Builder(16)
    b.collective("all_gather", 16 * GIB, 90_000.0, stream=7, algorithm="ring/Simple")
    found = counters(b, per_node=8)
    for rank in range(16):
        # Each of the 8 channels leaves a node once, on its own card, with an eighth of 15/16 of the bytes.
        assert moved_bytes(found[rank, f"NIC {rank % 8} out"]) == pytest.approx(15 / 16 * 16 * GIB / 8, rel=1e-6)
        assert moved_bytes(found[rank, f"NIC {rank % 8} in"]) == pytest.approx(15 / 16 * 16 * GIB / 8, rel=1e-6)


def test_overlapping_collectives_add_up_exactly():
    b = Builder(8)
    for i in range(50):
        b.collective("all_gather", 1_000_003 * (i + 1), 33.3 + i, stream=7 + i % 3, algorithm="ring/LL128")
        b.collective("reduce_scatter", 77_777, 9.1, stream=20, ranks=[1, 2, 4], algorithm="tree/LL")
    found = counters(b)
    assert moved_bytes(found[0, "NVLink out"]) == pytest.approx(7 / 8 * 1_000_003 * 50 * 51 / 2, rel=1e-6)
    assert all(series.values.min() == 0 for series in found.values())


def test_messages_and_roots():
    b = Builder(8)
    b.collective("send_recv", GIB, 3000.0, stream=7, ranks=[2, 5], algorithm="p2p/Simple")
    b.collective("gather", 8 * GIB, 30_000.0, stream=8, ranks=list(range(8)), algorithm="direct/Simple")
    found = counters(b)
    assert moved_bytes(found[2, "NVLink out"]) == pytest.approx(GIB + GIB, rel=1e-6)
    assert moved_bytes(found[0, "NVLink in"]) == pytest.approx(7 * GIB, rel=1e-6)
    assert (0, "NVLink out") not in found


@pytest.mark.parametrize("algorithm", ["Ring", "Tree", "NVLS"])
def test_no_algorithm_moves_more_than_the_link_can(algorithm):
    cluster = load_cluster("dgx-h100")
    operation = CommOperation(kind="all_reduce", ranks=tuple(range(8)), bytes=GIB)
    alone_ns = exclusive_ns(cluster, Placement(cluster, 1, 8), operation, {"NCCL_ALGO": algorithm})
    b = Builder(8)
    b.collective("all_reduce", GIB, alone_ns / 1e3, stream=7, algorithm=f"{algorithm.lower()}/Simple")
    found = counters(b)
    assert len(found) == 16
    for series in found.values():
        assert 200 < series.values.max() <= cluster.intra_node.bytes_per_s / 1e9


def test_meshes_lanes_and_shared_cards():
    b = Builder(4)
    b.collective("all_gather", GIB, 5000.0, stream=7, algorithm="ring/Simple")
    found = counters(b, "h200-nvl")
    assert moved_bytes(found[3, "NVLink in"]) == pytest.approx(3 / 4 * GIB, rel=1e-6)
    b = Builder(8)
    b.collective("all_gather", GIB, 500_000.0, stream=7, algorithm="ring/Simple")
    found = counters(b, "rtx3090-ethernet", per_node=4)
    assert moved_bytes(found[2, "NIC 0 out"]) == pytest.approx(7 / 8 * GIB, rel=1e-6)  # one card for the four
    assert found[2, "NIC 0 out"].values.max() == found[3, "NIC 0 out"].values.max()
    assert moved_bytes(found[2, "PCIe out"]) > 0


def test_without_a_cluster_nothing_is_known():
    b = Builder(2)
    b.collective("all_reduce", GIB, 5000.0, stream=7)
    assert link_counters(b.finish(), [0, 1]) == []
