"""Routes: what a message crosses, on each sort of cluster."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from phantora.cluster import list_clusters, load_cluster
from phantora.cluster.routes import Routes
from phantora.cluster.spec import Cluster
from phantora.cluster.topology import Topology


def names(cluster: Cluster, source: int, destination: int) -> list[str]:
    topology = Topology(cluster)
    return [topology.link(link).name for link in Routes(topology).route(source, destination)]


def test_inside_a_node() -> None:
    assert names(load_cluster("dgx-h100"), 0, 3) == ["node0.gpu0->nvswitch", "nvswitch->node0.gpu3"]
    assert names(load_cluster("h200-nvl"), 1, 2) == ["node0.gpu1->node0.gpu2"]
    assert names(load_cluster("rtx3090-ethernet"), 0, 1) == ["node0.gpu0->pcie", "pcie->node0.gpu1"]


def test_same_rail_stays_below_its_leaf() -> None:
    assert names(load_cluster("dgx-h100"), 2, 8 + 2) == [
        "node0.gpu2->nic", "node0.nic2->fabric", "fabric->node1.nic2", "nic->node1.gpu2",
    ]  # fmt: skip


def with_pxn(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, nic=dataclasses.replace(cluster.nic, pxn=True))


def test_another_rail_is_behind_a_spine() -> None:
    route = names(load_cluster("dgx-h100"), 0, 8 + 2)
    assert route[2:4] == ["leaf0->spines", "spines->leaf2"]
    assert (route[:2], route[4:]) == (
        ["node0.gpu0->nic", "node0.nic0->fabric"], ["fabric->node1.nic2", "nic->node1.gpu2"],
    )  # fmt: skip


def test_with_pxn_another_rail_is_reached_over_nvlink() -> None:
    assert names(with_pxn(load_cluster("dgx-h100")), 0, 8 + 2) == [
        "node0.gpu0->nvswitch", "nvswitch->node0.gpu2",
        "node0.gpu2->nic", "node0.nic2->fabric", "fabric->node1.nic2", "nic->node1.gpu2",
    ]  # fmt: skip


def test_names_stand_in_the_order_of_indices() -> None:
    topology = Topology(load_cluster("dgx-h100"), 2)
    assert list(topology.names()) == [topology.link(index).name for index in range(topology.num_links)]


def test_other_group_of_leaves_crosses_a_spine() -> None:
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=64)
    route = names(cluster, 0, 40 * 8)
    assert route[2] == "leaf0->spines"
    assert route[3].endswith("->leaf8")  # node 40 is in the second group; its rail 0 is leaf 8


def test_gpus_share_cards() -> None:
    assert names(load_cluster("p4d"), 1, 8) == [
        "node0.gpu1->nic", "node0.nic0->fabric", "fabric->node1.nic0", "nic->node1.gpu0",
    ]  # fmt: skip


def test_cards_of_one_gpu_are_one_link() -> None:
    topology = Topology(load_cluster("p5"))
    rates = {topology.link(i).bytes_per_s for i in range(topology.num_links) if "fabric" in topology.link(i).name}
    assert rates == {4 * 12.5e9 * 0.9}


def test_a_rack_is_one_nvlink_domain() -> None:
    assert names(load_cluster("gb200-nvl72"), 0, 71) == ["node0.gpu0->nvswitch", "nvswitch->node17.gpu3"]


@pytest.mark.parametrize("name", list_clusters())
def test_single_routes_agree_with_the_matrix_and_are_symmetric_in_length(name: str) -> None:
    topology = Topology(load_cluster(name))
    routes = Routes(topology)
    gpus = np.arange(min(topology.num_gpus, 20))
    sources, destinations = np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus))
    for source, destination, row in zip(sources, destinations, topology.route_matrix(sources, destinations)):
        route = routes.route(int(source), int(destination))
        assert route == tuple(row[row >= 0])
        assert (source == destination) == (route == ())
        assert len(set(route)) == len(route)


def test_every_link_has_a_name_of_its_own_and_capacity() -> None:
    topology = Topology(load_cluster("p4d"), num_nodes=33)
    found = [topology.link(index).name for index in range(topology.num_links)]
    assert len(set(found)) == len(found)
    assert (topology.bytes_per_s > 0).all()


def test_leaf_uplinks_carry_what_their_ports_bring() -> None:
    cluster = load_cluster("p4d")
    topology = Topology(cluster)
    ups = [topology.link(i) for i in range(topology.num_links) if topology.link(i).name.startswith("leaf0->")]
    ports = cluster.fabric.hosts_per_leaf * cluster.nic.count * cluster.nic.bytes_per_s * cluster.nic.efficiency
    assert sum(link.bytes_per_s for link in ups) == pytest.approx(ports)


def with_fabric(cluster: Cluster, **changes: object) -> Cluster:
    return dataclasses.replace(cluster, fabric=dataclasses.replace(cluster.fabric, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["rail-optimised", "fat-tree"])
@pytest.mark.parametrize("hosts_per_leaf", [1, 2, 4, 32])
@pytest.mark.parametrize("num_spines", [1, 3, 16, 64])
def test_no_uplink_of_a_fabric_that_is_not_oversubscribed_is_slower_than_a_card(
    kind: str, hosts_per_leaf: int, num_spines: int
) -> None:
    for routing in ("adaptive", "ecmp"):
        changes = {"kind": kind, "hosts_per_leaf": hosts_per_leaf, "num_spines": num_spines, "routing": routing}
        topology = Topology(with_fabric(load_cluster("dgx-h100"), **changes), num_nodes=8)
        cards = topology.nic_bytes_per_s * (1 - 1e-12)
        assert all(topology.bytes_per_s[i] >= cards for i, name in enumerate(topology.names()) if "spine" in name)


@pytest.mark.parametrize(("oversubscription", "cables"), [(1, 32), (2, 16), (3, 11), (1000, 1)])
def test_an_oversubscribed_leaf_has_fewer_cables_of_the_same_sum(oversubscription: float, cables: int) -> None:
    cluster = with_fabric(load_cluster("dgx-h100"), routing="ecmp", oversubscription=oversubscription)
    topology = Topology(cluster)
    ups = [topology.link(i) for i, name in enumerate(topology.names()) if name.startswith("leaf0->")]
    assert len(ups) == len({link.name for link in ups}) == cables
    assert sum(link.bytes_per_s for link in ups) == pytest.approx(32 * topology.nic_bytes_per_s / oversubscription)


def test_cable_choice_of_ecmp_spreads_and_repeats() -> None:
    cluster = with_fabric(dataclasses.replace(load_cluster("dgx-h100"), num_nodes=64), routing="ecmp")
    spines = {names(cluster, 8 * node, 8 * (node + 32))[2] for node in range(16)}
    assert len(spines) > 8
    assert names(cluster, 0, 320) == names(cluster, 0, 320)
