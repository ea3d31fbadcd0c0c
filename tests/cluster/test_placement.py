"""Ranks on GPUs, and worlds that do not fit."""

from __future__ import annotations

import pytest

from phantora.cluster import Placement, check_world, load_cluster
from phantora.errors import UserError


def test_ranks_fill_node_after_node() -> None:
    placement = Placement(load_cluster("dgx-h100"), 3, 4)
    assert placement.world_size == 12
    assert [placement.locate(rank) for rank in (0, 3, 4, 11)] == [(0, 0), (0, 3), (1, 0), (2, 3)]
    assert placement.gpu(5) == 9  # node 1 begins at GPU 8


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
