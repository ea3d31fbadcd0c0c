"""Rings and trees: they reach everyone, and no link works more than the algorithm says."""

from __future__ import annotations

from collections import Counter

import pytest

from phantora.cluster.topology import Topology
from phantora.network.schedules import Group, between_domains_tree_edges, ring_edges, tree_edges
from tiny_clusters import tiny


def group(num_nodes: int, gpus_per_node: int) -> Group:
    cluster = tiny(num_nodes, gpus_per_node)
    return Group.of(Topology(cluster), tuple(range(cluster.num_gpus)))


@pytest.mark.parametrize(("num_nodes", "gpus_per_node"), [(1, 4), (2, 1), (2, 4), (3, 2), (5, 8)])
def test_every_gpu_sends_and_receives_the_whole_ring_once(num_nodes: int, gpus_per_node: int) -> None:
    edges = ring_edges(group(num_nodes, gpus_per_node), is_mesh=False)
    sent, received = Counter(), Counter()  # type: ignore[var-annotated]
    for source, destination, share in zip(edges.sources.tolist(), edges.destinations.tolist(), edges.shares.tolist()):
        sent[source] += share
        received[destination] += share
    gpus = range(num_nodes * gpus_per_node)
    assert [sent[gpu] for gpu in gpus] == pytest.approx([1.0] * len(gpus))
    assert [received[gpu] for gpu in gpus] == pytest.approx([1.0] * len(gpus))


def test_a_chain_has_no_edge_into_its_root() -> None:
    assert 3 not in ring_edges(group(1, 4), is_mesh=False, open_at=3).destinations.tolist()


@pytest.mark.parametrize("num_nodes", [2, 3, 4, 7, 8, 13])
def test_double_tree_reaches_every_node_and_loads_none_with_more_than_two(num_nodes: int) -> None:
    edges = between_domains_tree_edges(group(num_nodes, 1))
    sent = Counter()  # type: ignore[var-annotated]
    for source, share in zip(edges.sources.tolist(), edges.shares.tolist()):
        sent[source] += share
    assert set(sent) == set(range(num_nodes))
    # two trees of num_nodes - 1 branches, both ways, half the bytes each
    assert sum(sent.values()) == pytest.approx(2 * (num_nodes - 1))
    assert max(sent.values()) <= 2.0


def test_tree_inside_a_node_is_a_chain_both_ways() -> None:
    edges = tree_edges(group(1, 4), is_mesh=False)
    assert sum(edges.shares.tolist()) == pytest.approx(2 * 3)
