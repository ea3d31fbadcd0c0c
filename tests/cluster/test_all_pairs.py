"""Counted loads of all pairs are those of every route."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from phantora.cluster import load_cluster
from phantora.cluster.all_pairs import all_pairs_load, can_count
from phantora.cluster.topology import Topology

GROUPS = [range(16), range(0, 60, 3), (0, 1, 2, 9, 17, 18, 40), (5, 3, 11)]


@pytest.mark.parametrize("preset", ["dgx-h100", "p4d", "p5", "gb200-nvl72", "h200-nvl", "rtx3090-ethernet"])
@pytest.mark.parametrize("kind", ["rail-optimised", "fat-tree"])
@pytest.mark.parametrize("group", range(len(GROUPS)))
def test_as_routed_one_by_one(preset: str, kind: str, group: int) -> None:
    cluster = load_cluster(preset)
    if cluster.num_nodes > 1:
        fabric = dataclasses.replace(cluster.fabric, kind=kind, hosts_per_leaf=2)
        cluster = dataclasses.replace(cluster, num_nodes=36, fabric=fabric)
    topology = Topology(cluster)
    gpus = np.array([gpu for gpu in GROUPS[group] if gpu < topology.num_gpus])
    sources, destinations = np.repeat(gpus, len(gpus)), np.tile(gpus, len(gpus))
    near = sources // topology.gpus_per_domain == destinations // topology.gpus_per_domain
    for chosen, load in zip((near, ~near), all_pairs_load(topology, gpus)):
        matrix = topology.route_matrix(sources[chosen], destinations[chosen])
        assert np.array_equal(np.bincount(matrix[matrix >= 0], minlength=topology.num_links), load)


def test_not_where_a_cable_or_a_rail_depends_on_the_pair() -> None:
    cluster = load_cluster("dgx-h100")
    assert can_count(Topology(cluster))
    ecmp = dataclasses.replace(cluster, fabric=dataclasses.replace(cluster.fabric, routing="ecmp"))
    pxn = dataclasses.replace(cluster, nic=dataclasses.replace(cluster.nic, pxn=True))
    assert not can_count(Topology(ecmp)) and not can_count(Topology(pxn))
