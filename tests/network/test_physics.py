"""What must be so whatever the constants: bytes, rates, sharing, oversubscription, placement."""

from __future__ import annotations

import dataclasses

import pytest

from phantora.cluster import Cluster, FabricSpec, Placement, PlacementSpec, load_cluster
from phantora.network import CommOperation, NetworkSimulator, exclusive_ns
from tiny_clusters import tiny, whole

MIB = 2**20


def time_ns(cluster: Cluster, kind: str, ranks: tuple[int, ...], num_bytes: int) -> int:
    operation = CommOperation(kind=kind, ranks=ranks, bytes=num_bytes)  # type: ignore[arg-type]
    return exclusive_ns(cluster, whole(cluster), operation)


def faster(cluster: Cluster, part: str, factor: float) -> Cluster:
    spec = getattr(cluster, part)
    return dataclasses.replace(cluster, **{part: dataclasses.replace(spec, bytes_per_s=spec.bytes_per_s * factor)})


@pytest.mark.parametrize("part", ["intra_node", "nic"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
@pytest.mark.parametrize("preset", ["dgx-h100", "dgx-a100-80g", "p5", "p4d", "rtx3090-ethernet"])
def test_more_bandwidth_is_never_slower(preset: str, kind: str, part: str) -> None:
    cluster = dataclasses.replace(load_cluster(preset), num_nodes=4)
    ranks = tuple(range(cluster.num_gpus))
    for num_bytes in (64 * 1024, MIB, 16 * MIB, 256 * MIB):
        times = [time_ns(faster(cluster, part, factor), kind, ranks, num_bytes) for factor in (0.5, 1, 1.3, 2)]
        assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("nodes", [1, 2, 3, 8])
def test_more_bytes_are_never_faster(nodes: int) -> None:
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=nodes)
    ranks = tuple(range(cluster.num_gpus))
    times = [time_ns(cluster, "all_reduce", ranks, round(1024 * 1.19**step)) for step in range(80)]
    assert times == sorted(times)


def ends(cluster: Cluster, operations: list[CommOperation]) -> list[int]:
    network, found = NetworkSimulator(cluster, whole(cluster)), {}
    for key, operation in enumerate(operations):
        network.begin(key, operation, 0)
    while (now_ns := network.next_ns()) is not None:
        found.update(dict.fromkeys(network.advance(now_ns), now_ns))
    return [found[key] for key in range(len(operations))]


def all_reduce(*ranks: int, num_bytes: int = 256 * MIB) -> CommOperation:
    return CommOperation(kind="all_reduce", ranks=ranks, bytes=num_bytes)


def test_all_reduces_on_disjoint_links_do_not_disturb_each_other() -> None:
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=4)
    rails = [all_reduce(*range(local, 32, 8)) for local in range(8)]
    assert ends(cluster, rails) == [ends(cluster, [rail])[0] for rail in rails]


def test_on_one_shared_link_they_take_what_sharing_says() -> None:
    # two GPUs of a node share one card: both rings through it take twice the bytes' time
    cluster = load_cluster("p4d")
    cluster = dataclasses.replace(cluster, num_nodes=2, nic=dataclasses.replace(cluster.nic, latency_ns=0))
    first, second = all_reduce(0, 8), all_reduce(1, 9)
    alone = ends(cluster, [first])[0]
    latency = alone - ends(cluster, [all_reduce(0, 8, num_bytes=512 * MIB)])[0] + alone
    together = ends(cluster, [first, second])
    assert together[0] == together[1] == pytest.approx(2 * alone - latency, rel=0.01)


def test_oversubscription_costs_what_it_must() -> None:
    # 8 nodes of one GPU, 4 below a leaf, one spine: half of an all-to-all's bytes and more cross it
    def fabric(oversubscription: float) -> Cluster:
        spec = FabricSpec(kind="fat-tree", hosts_per_leaf=4, num_spines=1, oversubscription=oversubscription)
        return dataclasses.replace(tiny(8, 1), fabric=spec)

    ranks = tuple(range(8))
    plain, double, fourfold = (time_ns(fabric(factor), "all_to_all", ranks, 10**9) for factor in (1, 2, 4))
    # each card sends 7/8 of its bytes, 4/8 of them to the other leaf over 1/factor of the rate
    assert double == pytest.approx(plain * max(7 / 8, 2 * 4 / 8) / (7 / 8), rel=0.01)
    assert fourfold == pytest.approx(2 * double, rel=0.01)


@pytest.mark.parametrize("routing", ["adaptive", "ecmp"])
@pytest.mark.parametrize("hosts_per_leaf", [1, 2, 32])
def test_a_fabric_that_is_not_oversubscribed_never_holds_one_message_back(hosts_per_leaf: int, routing: str) -> None:
    base = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=64)
    fabric = dataclasses.replace(base.fabric, hosts_per_leaf=hosts_per_leaf, routing=routing)  # type: ignore[arg-type]
    cluster = dataclasses.replace(base, fabric=fabric)
    through_card = 2**30 / (cluster.nic.bytes_per_s * cluster.nic.efficiency) * 1e9
    far = time_ns(cluster, "send_recv", (0, 8 * 40 + 3), 2**30)  # another group of leaves, another rail
    assert far == pytest.approx(through_card, rel=0.01)


def test_with_adaptive_routing_pairs_of_distinct_cards_never_meet() -> None:
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=64)
    pairs = [(8 * node, 8 * (node + 32)) for node in range(32)]
    alone = time_ns(cluster, "send_recv", pairs[0], 2**30)
    messages = [CommOperation(kind="send_recv", ranks=pair, bytes=2**30) for pair in pairs]
    assert set(ends(cluster, messages)) == {alone}
    fabric = dataclasses.replace(cluster.fabric, routing="ecmp")
    assert max(ends(dataclasses.replace(cluster, fabric=fabric), messages)) > 1.5 * alone  # two on one cable


def test_oversubscription_holds_all_back_alike_with_adaptive_routing() -> None:
    base = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=64)
    fabric = dataclasses.replace(base.fabric, oversubscription=4.0)
    messages = [CommOperation(kind="send_recv", ranks=(8 * node, 8 * (node + 32)), bytes=2**30) for node in range(32)]
    plain, slowed = ends(base, messages)[0], ends(dataclasses.replace(base, fabric=fabric), messages)
    assert all(end == pytest.approx(4 * plain, rel=0.01) for end in slowed)


def test_all_to_all_between_nodes_is_bound_by_the_cards() -> None:
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=4)
    ranks, num_bytes = tuple(range(32)), 2**30
    through_card = num_bytes * 24 / 32 / (cluster.nic.bytes_per_s * cluster.nic.efficiency) * 1e9
    assert time_ns(cluster, "all_to_all", ranks, num_bytes) >= through_card
    faster_inside = time_ns(faster(cluster, "intra_node", 2), "all_to_all", ranks, num_bytes)
    assert faster_inside == pytest.approx(time_ns(cluster, "all_to_all", ranks, num_bytes), rel=0.001)


def test_placement_matters() -> None:
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=8)
    placement, num_bytes = Placement(cluster, 8, 8), 64 * MIB
    one_node, two_nodes = tuple(range(8)), (0, 1, 2, 3, 8, 9, 10, 11)
    one_rail, diagonal = tuple(range(0, 64, 8)), tuple(range(0, 64, 9))
    times = [
        exclusive_ns(cluster, placement, CommOperation(kind="all_reduce", ranks=ranks, bytes=num_bytes))
        for ranks in (one_node, two_nodes, one_rail, diagonal)
    ]
    assert times[0] < times[1] < times[2]  # NVLink; four cards a node; one card a node
    assert times[2] <= times[3]  # rails that differ meet only behind the spines


def test_nodes_far_apart_take_longer_than_neighbours() -> None:
    def spread(*nodes: int) -> Cluster:
        fabric = FabricSpec(kind="fat-tree", hosts_per_leaf=4, num_spines=1, latency_ns=300, spine_cable="hall")
        cluster = dataclasses.replace(tiny(8, 1), fabric=fabric)
        return dataclasses.replace(cluster, placement=PlacementSpec(nodes=nodes))

    def one(cluster: Cluster) -> int:
        message = CommOperation(kind="send_recv", ranks=(0, 1), bytes=1024)
        return exclusive_ns(cluster, Placement(cluster, 2, 1), message)

    assert one(spread(0, 7)) == one(spread(0, 1)) + 2 * (300 + 500)  # up and down again, 100 m each


def test_16384_gpus() -> None:
    import time

    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=2048)
    begin = time.process_time()
    assert time_ns(cluster, "all_reduce", tuple(range(16384)), 2**30) > 0
    assert time.process_time() - begin < 5  # 0.1 s on the machine where it was written; benchmarks/network.py
