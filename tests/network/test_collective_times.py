"""Collectives on a tiny cluster: times computed by hand from bytes, rates and the constants' table."""

from __future__ import annotations

import dataclasses

import pytest

from phantora.cluster import Cluster, Placement, load_cluster
from phantora.cluster.topology import Topology
from phantora.network import CommOperation, exclusive_ns
from phantora.network import constants
from phantora.network.collectives import CompiledOperation, Compiler
from tiny_clusters import tiny, whole

GB = 10**9
RING_NS = constants.ONE_NODE_BASE_NS["Simple"]
STEP_NS = constants.HOPPER.ring_step_ns["Simple"]


def last_share(bytes_per_edge: float) -> float:
    """Of a step that a ring of several steps takes for its last one, which only receives."""
    return constants.RECEIVE_SHARE * (bytes_per_edge * GB / (64 << 20)) ** -(2 * constants.RECEIVE_SHARE_EXPONENT)


def operation(kind: str, num_ranks: int, num_bytes: int = GB, **more: object) -> CommOperation:
    return CommOperation(kind=kind, ranks=tuple(range(num_ranks)), bytes=num_bytes, **more)  # type: ignore[arg-type]


def compiled(cluster: Cluster, op: CommOperation) -> CompiledOperation:
    return Compiler(Topology(cluster), whole(cluster)).compile(op)


def time_ns(cluster: Cluster, op: CommOperation) -> int:
    return exclusive_ns(cluster, whole(cluster), op)


@pytest.mark.parametrize(
    ("kind", "bytes_per_edge", "num_steps"),
    [
        ("all_reduce", 1.5 * (6 + last_share(1.5)) / 6, 7),  # 2 (n-1)/n of the bytes, 2 (n-1) steps that send, one that does not
        ("all_gather", 0.75 * (3 + last_share(0.75)) / 3, 4),
        ("reduce_scatter", 0.75 * (3 + last_share(0.75)) / 3, 4),
        ("broadcast", 1.0, 3),  # a pipeline: everyone receives while others send
        ("reduce", 1.0, 3),
    ],
)
def test_ring_in_one_node(kind: str, bytes_per_edge: float, num_steps: int) -> None:
    expected = RING_NS + num_steps * STEP_NS + bytes_per_edge * GB / 100  # 100 GB/s = 100 bytes per ns
    assert time_ns(tiny(), operation(kind, 4)) == pytest.approx(expected, abs=2)
    assert compiled(tiny(), operation(kind, 4)).label == "ring/Simple"


def test_ring_between_nodes_uses_every_rail() -> None:
    # 0.75 GB per edge of the ring, half of it on each of the two rails of 10 GB/s
    near = max(constants.STEP_NS["ring", "nvlink", "Simple"], 3 * constants.NET_OVERHEAD_NS["intel"])
    far = constants.STEP_NS["ring", "net", "Simple"]
    latency = constants.BASE_NS["ring", "Simple"] + 2 * near + far
    expected = latency + 0.375 * GB / 10
    assert time_ns(tiny(2, 2), operation("all_gather", 4)) == pytest.approx(expected, abs=2)


def test_all_reduce_between_two_nodes_is_a_tree() -> None:
    # each node sends the sum once each way: 5 GB per rail, at 0.92 x 0.85 of the rate
    found = compiled(tiny(2, 2), operation("all_reduce", 4, 10 * GB))
    assert found.label == "tree/Simple"
    expected = found.latency_ns + 5 * GB / 10 / constants.TREE_EFFICIENCY / constants.TREE_PATTERN_SHARE
    assert time_ns(tiny(2, 2), operation("all_reduce", 4, 10 * GB)) == pytest.approx(expected, rel=1e-3)
    assert found.latency_ns < 0.01 * expected


def test_nvls_moves_one_and_a_part_of_the_bytes() -> None:
    cluster = tiny(gpus_per_node=8, nvls=True)
    found = compiled(cluster, operation("all_reduce", 8))
    assert found.label == "nvls/Simple"
    ns_per_byte = 1.125 / constants.HOPPER.nvls_efficiency / 100
    fill = constants.NVLS_FILL_STAGES * 65_536 * 16 * 8 * ns_per_byte  # 1 GB: chunks of 64 KiB, 16 channels, 8 heads
    expected = constants.STEP_NS["nvls", "nvlink", "Simple"] + fill + GB * ns_per_byte
    assert time_ns(cluster, operation("all_reduce", 8)) == pytest.approx(expected, abs=2)
    assert compiled(cluster, operation("all_reduce", 8, dtype="uint8")).algorithm == "ring"


def test_pat_only_with_one_gpu_per_node() -> None:
    many = tiny(64, 1)
    assert compiled(many, operation("all_gather", 64, 1 << 20)).label == "pat/Simple"  # 63 steps of a ring are slower
    assert compiled(tiny(32, 2), operation("all_gather", 64, 1 << 20)).algorithm == "ring"


def test_mesh_uses_all_pairs() -> None:
    # 4 x 1.5 GB over 12 links of 100/3 GB/s: as fast as through a switch
    switched = time_ns(tiny(), operation("all_reduce", 4))
    assert time_ns(tiny(kind="mesh"), operation("all_reduce", 4)) == pytest.approx(switched, abs=2)
    # two of the four have one link between them
    pair = time_ns(tiny(kind="mesh"), operation("all_gather", 2))
    assert pair > 0.5 * GB / (100 / 3)


def test_all_to_all_and_send_recv() -> None:
    base = constants.P2P_BASE_NS["Simple"] + 3 * constants.P2P_WIDENING_NS  # 128 KiB to 1 MiB: three doublings
    peers = 2 * constants.P2P_PEER_NS["nvlink"]
    assert time_ns(tiny(), operation("all_to_all", 4)) == pytest.approx(base + peers + duplex_ns(0.75), abs=2)
    assert time_ns(tiny(), operation("send_recv", 2)) == pytest.approx(base + GB / 100, abs=2)


def duplex_ns(gigabytes: float) -> float:
    """Of so much in each direction over a link of 100 GB/s at once."""
    link_ns = gigabytes * GB / 100
    lost_ns = constants.P2P_DUPLEX_NS * (link_ns / 1000) ** constants.P2P_DUPLEX_EXPONENT
    return link_ns + constants.P2P_DUPLEX_BASE_NS + lost_ns


def test_messages_in_a_ring_lose_what_an_all_to_all_loses() -> None:
    one_way = time_ns(tiny(), operation("send_recv", 2))
    exchange = time_ns(tiny(), CommOperation(kind="send_recv", ranks=(0, 1, 0), bytes=GB))
    round_all = time_ns(tiny(), CommOperation(kind="send_recv", ranks=(0, 1, 2, 3, 0), bytes=GB))
    assert exchange == round_all == pytest.approx(one_way - GB / 100 + duplex_ns(1.0), abs=2)
    assert time_ns(tiny(), CommOperation(kind="send_recv", ranks=(0, 1, 2), bytes=GB)) == exchange  # 1 does both


def test_a_small_message_is_of_the_ll_sort_up_to_its_threshold() -> None:
    labels = [compiled(tiny(), operation("send_recv", 2, size)).label for size in (16 << 10, (16 << 10) + 1)]
    assert labels == ["p2p/LL", "p2p/Simple"]
    labels = [compiled(tiny(), operation("all_to_all", 4, size)).label for size in (16 << 10, (64 << 10) + 4)]
    assert labels == ["direct/LL", "direct/Simple"]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "send_recv", "all_to_all"])
@pytest.mark.parametrize("preset", ["dgx-h100", "rtx3090-ethernet"])
def test_latency_of_the_links_inside_a_node_counts(preset: str, kind: str) -> None:
    cluster = dataclasses.replace(load_cluster(preset), num_nodes=1)
    times = []
    for latency_ns in (500, 2_000, 4_000):
        intra = dataclasses.replace(cluster.intra_node, latency_ns=latency_ns)
        times.append(time_ns(dataclasses.replace(cluster, intra_node=intra), operation(kind, 2, 1024)))
    assert times[0] < times[1] < times[2]


def test_gather_and_scatter_are_bound_by_the_root() -> None:
    for kind in ("gather", "scatter"):
        found = compiled(tiny(), operation(kind, 4, root=2))
        assert time_ns(tiny(), operation(kind, 4, root=2)) == pytest.approx(found.latency_ns + 0.75 * GB / 100, abs=2)


def test_unequal_all_to_all_takes_as_long_as_its_busiest_link() -> None:
    splits = ((0, 10**9, 0, 0), (0, 0, 10**8, 0), (0, 10**9, 0, 0), (5, 0, 0, 0))  # GPU 1 receives 2 GB
    op = operation("all_to_all", 4, 10**9, split_bytes=splits)
    found = compiled(tiny(), op)
    expected = found.latency_ns + 2 * GB / 100
    assert found.latency_ns > duplex_ns(2.0) - 2 * GB / 100
    assert time_ns(tiny(), op) == pytest.approx(expected, abs=2)


def test_equal_splits_are_the_plain_all_to_all() -> None:
    equal = tuple((GB // 4,) * 4 for _ in range(4))
    plain = time_ns(tiny(), operation("all_to_all", 4))
    assert time_ns(tiny(), operation("all_to_all", 4, split_bytes=equal)) == pytest.approx(plain, rel=1e-3)


def test_all_to_all_without_a_byte_is_only_latency() -> None:
    op = operation("all_to_all", 4, 0, split_bytes=((0,) * 4,) * 4)
    assert time_ns(tiny(), op) == compiled(tiny(), op).latency_ns > 0


def test_barrier_is_latency_only() -> None:
    found = compiled(tiny(), operation("barrier", 4, 0))
    assert (found.transfers, found.protocol) == ((), "LL")
    assert time_ns(tiny(), operation("barrier", 4, 0)) == constants.ONE_NODE_BASE_NS["LL"] + 7 * 700


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier"])
def test_a_group_of_one_costs_a_copy_and_never_nothing(kind: str) -> None:
    assert compiled(tiny(), operation(kind, 1)).label == "copy"
    small, large = time_ns(tiny(), operation(kind, 1, 0)), time_ns(tiny(), operation(kind, 1, GB))
    assert 0 < small
    assert (large > small) == (kind in ("all_gather", "reduce_scatter", "all_to_all"))  # torch's others work in place


def test_send_to_oneself_is_a_copy() -> None:
    assert compiled(tiny(), CommOperation(kind="send_recv", ranks=(2, 2), bytes=100)).label == "copy"


PRESETS = ["dgx-h100", "p4d", "p5", "h200-nvl", "rtx3090-ethernet", "gb200-nvl72", "dgx-a100-80g"]
KINDS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", PRESETS)
def test_more_bytes_never_take_less_time(preset: str, kind: str) -> None:
    cluster = load_cluster(preset)
    placement = Placement(cluster, min(cluster.num_nodes, 3), cluster.gpus_per_node)
    sizes = [2**exponent for exponent in range(8, 32, 3)]
    times = [exclusive_ns(cluster, placement, operation(kind, placement.world_size, size)) for size in sizes]
    assert times == sorted(times)
    assert times[0] > 0


def test_data_parallel_groups_across_nodes_use_one_rail_each() -> None:
    cluster = tiny(4, 2)
    ranks = (1, 3, 5, 7)  # local GPU 1 of each node
    found = Compiler(Topology(cluster), whole(cluster)).compile(CommOperation(kind="all_gather", ranks=ranks, bytes=GB))
    topology = Topology(cluster)
    crossed = {topology.link(int(link)).name for transfer in found.transfers for link in transfer.links}
    assert crossed == {
        f"{end}" for node in range(4) for end in (
            f"node{node}.gpu1->nic", f"node{node}.nic1->fabric", f"fabric->node{node}.nic1", f"nic->node{node}.gpu1")
    }  # fmt: skip


def test_ring_keeps_to_the_rails_between_an_even_number_of_nodes() -> None:
    cluster = tiny(4, 4)
    topology = Topology(cluster)
    found = Compiler(topology, whole(cluster)).compile(operation("all_gather", 16))
    between = next(t for t in found.transfers if t.is_between_domains)
    assert set(between.usages.tolist()) == {1.0}  # every card once, nothing forwarded over NVLink
    assert not any("nvswitch" in topology.link(int(link)).name for link in between.links)
