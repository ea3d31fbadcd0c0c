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
from phantora.network.transfers import Edges, Floats, Indices


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
    def matrix(self) -> Indices | None:
        """The GPUs, a row for each domain, when all domains have as many members; else None."""
        sizes = {len(members) for members in self.domains}
        return np.array(self.domains, dtype=np.int64) if len(sizes) == 1 else None

    @property
    def num_channels(self) -> int:
        """Members of the smallest domain: the number of rails that the group can use."""
        return min(len(members) for members in self.domains)


def ring_edges(group: Group, is_mesh: bool, open_at: int | None = None) -> Edges:
    """One ring through all GPUs, each channel in another order; no edge into GPU `open_at` (a pipelined chain)."""
    num_channels = group.num_channels if len(group.domains) > 1 else 1
    orders = [_ring_order(group, channel) for channel in range(num_channels)]
    sources = np.concatenate(orders)
    destinations = np.concatenate([np.roll(order, -1) for order in orders])
    if open_at is not None:
        kept = destinations != open_at
        sources, destinations = sources[kept], destinations[kept]
    edges = _merge(sources, destinations, np.full(len(sources), 1 / num_channels))
    return _spread_over_mesh(group, edges) if is_mesh else edges


def _ring_order(group: Group, channel: int) -> Indices:
    """Domain by domain. Even domains are walked upwards from the channel's card to the one before it, odd domains back
    again, so that neighbouring domains meet on the same rail."""
    matrix = group.matrix
    if matrix is not None:
        rolled = np.roll(matrix, -channel, axis=1)
        rolled[1::2] = rolled[1::2, ::-1]
        return rolled.ravel()
    order: list[int] = []
    for index, members in enumerate(group.domains):
        start = channel % len(members)
        upwards = members[start:] + members[:start]
        order.extend(upwards if index % 2 == 0 else reversed(upwards))
    return np.array(order, dtype=np.int64)


def tree_edges(group: Group, is_mesh: bool) -> Edges:
    """Reduce up, broadcast down: a chain inside each domain, two complementary trees of half the bytes between them."""
    low, high = [], []
    for channel in range(group.num_channels):
        matrix = group.matrix
        for members in [matrix] if matrix is not None else [np.array([members]) for members in group.domains]:
            chain = np.roll(members, -(channel % members.shape[1]), axis=1)
            low.append(chain[:, :-1].ravel())
            high.append(chain[:, 1:].ravel())
    ends = np.concatenate(low), np.concatenate(high)
    shares = np.full(2 * len(ends[0]), 1 / group.num_channels)
    edges = _merge(np.concatenate(ends), np.concatenate(ends[::-1]), shares)
    if is_mesh:
        edges = _spread_over_mesh(group, edges)
    return join_edges(edges, between_domains_tree_edges(group)) if len(group.domains) > 1 else edges


def between_domains_tree_edges(group: Group) -> Edges:
    """The double binary tree over domains: on every channel's rail, both ways along a branch, half the bytes a tree."""
    count, channels = len(group.domains), group.num_channels
    parents = _tree_parents(count)
    mirrored = [_mirror(parents, index) for index in range(count)]
    branches = [(child, tree[child]) for tree in (parents, mirrored) for child in range(count) if tree[child] >= 0]
    children, above = (np.array(column) for column in zip(*branches))
    columns = [np.array([members[channel % len(members)] for members in group.domains]) for channel in range(channels)]
    low = np.concatenate([column[children] for column in columns])
    high = np.concatenate([column[above] for column in columns])
    shares = np.full(2 * len(low), 0.5 / channels)
    return _merge(np.concatenate([low, high]), np.concatenate([high, low]), shares)


def closed_rings_inside_domains(group: Group) -> Edges:
    """A ring inside each domain: loads each GPU's links into and out of the switch with one byte."""
    matrix = group.matrix
    parts = [matrix] if matrix is not None else [np.array([members]) for members in group.domains]
    sources = np.concatenate([part.ravel() for part in parts])
    destinations = np.concatenate([np.roll(part, -1, axis=1).ravel() for part in parts])
    return Edges(sources=sources, destinations=destinations, shares=np.ones(len(sources)))


def pat_edges(group: Group) -> Edges:
    """Recursive distance doubling, one GPU per domain: round k moves 2^k of the n blocks to the GPU 2^k further on."""
    gpus, n = np.array(group.gpus, dtype=np.int64), len(group.gpus)
    distances = [1 << k for k in range((n - 1).bit_length())]
    return Edges(
        sources=np.tile(gpus, len(distances)),
        destinations=np.concatenate([np.roll(gpus, -distance) for distance in distances]),
        shares=np.concatenate([np.full(n, min(distance, n - distance) / n) for distance in distances]),
    )


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


def _merge(sources: Indices, destinations: Indices, shares: Floats) -> Edges:
    """One edge per (source, destination), shares added, in order of source and destination."""
    size = int(max(sources.max(), destinations.max())) + 1 if len(sources) else 1
    keys, place = np.unique(sources * size + destinations, return_inverse=True)
    return Edges(sources=keys // size, destinations=keys % size, shares=np.bincount(place.ravel(), weights=shares))


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
