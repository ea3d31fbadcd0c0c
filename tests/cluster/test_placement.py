"""Ranks on GPUs, and worlds that do not fit."""

from __future__ import annotations

import dataclasses

import pytest

from phantora.cluster import Cluster, Placement, PlacementSpec, check_world, load_cluster
from phantora.errors import UserError


def test_ranks_fill_node_after_node() -> None:
    placement = Placement(load_cluster("dgx-h100"), 3, 4)
    assert placement.world_size == 12
    assert [placement.locate(rank) for rank in (0, 3, 4, 11)] == [(0, 0), (0, 3), (1, 0), (2, 3)]
    assert placement.gpu(5) == 9  # node 1 begins at GPU 8


def placed(nodes: tuple[int, ...] = (), gpus: tuple[int, ...] = ()) -> Cluster:
    return dataclasses.replace(load_cluster("dgx-h100"), placement=PlacementSpec(nodes=nodes, gpus=gpus))


def test_nodes_and_gpus_of_the_cluster_file() -> None:
    placement = Placement(placed((31, 4), (6, 7)), 3, 2)
    assert [placement.gpu(rank) for rank in range(6)] == [254, 255, 38, 39, 6, 7]  # then node 0
    assert placement.locate(2) == (1, 0)
    assert (placement.num_cluster_nodes, Placement(load_cluster("p5"), 3, 2).num_cluster_nodes) == (32, 3)


def test_a_placement_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="placement.nodes names 32, but there are 32"):
        placed((32,))
    with pytest.raises(ValueError, match="gpus must not name one twice"):
        placed((), (1, 1))
    with pytest.raises(UserError, match="has 2 GPUs"):
        Placement(placed((), (0, 1)), 1, 3)


@pytest.mark.parametrize(
    ("nodes", "per_node", "message"),
    [
        (1, 16, "--nproc-per-node 16: dgx-h100 has 8 GPUs a node (8 too many)"),
        (40, 8, "--nnodes 40: dgx-h100 has 32 nodes (8 too many;"),
        (0, 8, "--nnodes 0: must be at least 1"),
    ],
)
def test_a_world_that_does_not_fit(nodes: int, per_node: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_world(load_cluster("dgx-h100"), nodes, per_node)
    assert message in str(caught.value)
