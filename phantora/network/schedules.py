"""Who sends how much to whom in each algorithm, as NCCL lays it out over nodes and rails.

A group is the GPUs of a collective in group order, divided into NVLink domains (nodes). With L members in each domain
NCCL has L kinds of channel, one per local GPU and its card, so that the rails between nodes are all used; each carries
1/L of the bytes. All functions return Edges whose shares refer to one byte carried per edge of the whole ring (or
tree).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from phantora.cluster.topology import Topology
from phantora.network.transfers import Edges


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """GPUs of one collective: `gpus` in group order; `domains`, the same by NVLink domain, in order of appearance."""

    gpus: tuple[int, ...]
    domains: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, topology: Topology, gpus: tuple[int, ...]) -> Group:
        """The group of these GPUs."""
        by_domain: dict[int, list[int]] = {}
        for gpu in gpus:
            by_domain.setdefault(topology.domain(gpu), []).append(gpu)
        return cls(gpus=gpus, domains=tuple(tuple(members) for members in by_domain.values()))

    @property
    def num_channels(self) -> int:
        """Members of the smallest domain: the number of rails that the group can use."""
        return min(len(members) for members in self.domains)


def ring_edges(group: Group, is_mesh: bool, open_at: int | None = None) -> Edges:
    """One ring through all GPUs, each channel in another order; no edge into GPU `open_at` (a pipelined chain)."""
    num_channels = group.num_channels if len(group.domains) > 1 else 1
    pairs: list[tuple[int, int, float]] = []
    for channel in range(num_channels):
        order = _ring_order(group, channel)
        following = order[1:] + order[:1]
        pairs.extend((a, b, 1 / num_channels) for a, b in zip(order, following) if b != open_at)
    edges = _merge(pairs)
    return _spread_over_mesh(group, edges) if is_mesh else edges


def _ring_order(group: Group, channel: int) -> list[int]:
    """Domain by domain. Even domains are walked upwards from the channel's card to the one before it, odd domains back
    again, so that neighbouring domains meet on the same rail."""
    order: list[int] = []
    for index, members in enumerate(group.domains):
        start = channel % len(members)
        upwards = members[start:] + members[:start]
        order.extend(upwards if index % 2 == 0 else reversed(upwards))
    return order


def tree_edges(group: Group, is_mesh: bool) -> Edges:
    """Reduce up, broadcast down: a chain inside each domain, two complementary trees of half the bytes between them."""
    pairs: list[tuple[int, int, float]] = []
    share = 1 / group.num_channels
    for channel in range(group.num_channels):
        for members in group.domains:
            start = channel % len(members)
            chain = members[start:] + members[:start]
            pairs.extend((a, b, share) for a, b in zip(chain, chain[1:]))
            pairs.extend((b, a, share) for a, b in zip(chain, chain[1:]))
    edges = _merge(pairs)
    if is_mesh:
        edges = _spread_over_mesh(group, edges)
    return join_edges(edges, between_domains_tree_edges(group))


def between_domains_tree_edges(group: Group) -> Edges:
    """The double binary tree over domains: on every channel's rail, both ways along a branch, half the bytes a tree."""
    count, channels = len(group.domains), group.num_channels
    parents = _tree_parents(count)
    mirrored = [_mirror(parents, index) for index in range(count)]
    pairs: list[tuple[int, int, float]] = []
    for tree in (parents, mirrored):
        for child, parent in enumerate(tree):
            if parent < 0:
                continue
            for channel in range(channels):
                low, high = (group.domains[i][channel % len(group.domains[i])] for i in (child, parent))
                pairs.extend(((low, high, 0.5 / channels), (high, low, 0.5 / channels)))
    return _merge(pairs)


def _tree_parents(count: int) -> list[int]:
    """Parent of each node in a binary tree whose leaves are the odd numbers and whose root is 0 (-1 for the root).

    Clearing the lowest set bit and setting the next gives the parent; where that is outside, clearing alone does.
    (Sanders, Speck, Traeff: Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009; NCCL uses the
    same trees.)
    """
    parents = [-1] * count
    for node in range(1, count):
        low_bit = node & -node
        parent = (node - low_bit) | (low_bit << 1)
        parents[node] = parent if parent < count else node - low_bit
    return parents


def _mirror(parents: list[int], node: int) -> int:
    """Parent of `node` in the complementary tree: mirrored for an even count, shifted by one for an odd one."""
    count = len(parents)
    if count % 2 == 0:
        parent = parents[count - 1 - node]
        return count - 1 - parent if parent >= 0 else -1
    parent = parents[(node - 1) % count]
    return (parent + 1) % count if parent >= 0 else -1


def all_pairs_edges(group: Group) -> Edges:
    """Every GPU to every other one: 1/n of what each sends."""
    gpus = np.array(group.gpus, dtype=np.int64)
    n = len(gpus)
    return Edges(sources=np.repeat(gpus, n), destinations=np.tile(gpus, n), shares=np.full(n * n, 1 / n))


def split_edges(group: Group, split_bytes: tuple[tuple[int, ...], ...]) -> Edges:
    """Every GPU to every other one: the given number of bytes (shares are bytes here)."""
    edges = all_pairs_edges(group)
    shares = np.array(split_bytes, dtype=np.float64).reshape(-1)
    return Edges(sources=edges.sources, destinations=edges.destinations, shares=shares)


def star_edges(group: Group, root: int, inwards: bool) -> Edges:
    """Every GPU to the root (gather) or from it (scatter): 1/n each."""
    share = 1 / len(group.gpus)
    pairs = [(gpu, root, share) if inwards else (root, gpu, share) for gpu in group.gpus if gpu != root]
    return Edges.of(pairs)


def join_edges(first: Edges, second: Edges) -> Edges:
    """Both sets of edges."""
    return Edges(
        sources=np.concatenate([first.sources, second.sources]),
        destinations=np.concatenate([first.destinations, second.destinations]),
        shares=np.concatenate([first.shares, second.shares]),
    )


def scale_edges(edges: Edges, factor: float) -> Edges:
    """The same edges with `factor` times the shares."""
    return Edges(sources=edges.sources, destinations=edges.destinations, shares=edges.shares * factor)


def _merge(pairs: list[tuple[int, int, float]]) -> Edges:
    """One edge per (source, destination), shares added, in order of first appearance."""
    total: dict[tuple[int, int], float] = {}
    for source, destination, share in pairs:
        total[source, destination] = total.get((source, destination), 0.0) + share
    return Edges.of([(source, destination, share) for (source, destination), share in total.items()])


def _spread_over_mesh(group: Group, edges: Edges) -> Edges:
    """On a mesh NCCL runs rings in several orders so that all links work: what crosses a domain is spread evenly over
    its pairs."""
    domain_of = {gpu: index for index, members in enumerate(group.domains) for gpu in members}
    inside = [0.0] * len(group.domains)
    pairs: list[tuple[int, int, float]] = []
    for source, destination, share in zip(edges.sources.tolist(), edges.destinations.tolist(), edges.shares.tolist()):
        if domain_of[source] == domain_of[destination]:
            inside[domain_of[source]] += share
        else:
            pairs.append((source, destination, share))
    for members, share in zip(group.domains, inside):
        n = len(members)
        pairs.extend((a, b, share / (n * (n - 1))) for a in members for b in members if a != b and share)
    return Edges.of(pairs)
