"""The directed links of a cluster and the route of every pair of GPUs over them.

Links come in blocks, so that an index is arithmetic and routes of millions of pairs can be computed with NumPy:

    out[g], in[g]          GPU g into / out of its NVSwitch domain, or its PCIe lanes (kinds nvswitch, pcie)
    pair[d, i, j]          GPU i to GPU j of domain d (kind mesh)
    to_nic[g], from_nic[g] GPU g to its card and back (not for kind pcie: the lanes above carry that traffic too)
    nic_out[c], nic_in[c]  card c into / out of the fabric; several cards of one GPU are one link of their sum
    up[l], down[l]         leaf l to all spines and back (fabric.routing = adaptive)
    up[l, c], down[l, c]   cable c of leaf l to its spine and back (fabric.routing = ecmp)

Between nodes a message leaves by the source's card and arrives by the destination's. On a rail-optimised fabric a
message to another rail crosses the spines; with nic.pxn it first crosses NVLink to the local GPU of that rail, whose
card sends it (NCCL's PXN), and stays below one leaf.

With adaptive routing every message is spread evenly over all spines, so that the cables of a leaf act as one link of
their sum, and a leaf that is not oversubscribed never holds a message back. With ECMP a message keeps to one cable,
chosen by a fixed hash of the two cards; a leaf has as many cables, each of a card's rate, as the oversubscription
leaves it, cable c goes to spine c mod num_spines, and two messages may meet on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from phantora.cluster.spec import CABLE_NS, Cluster

Indices = NDArray[np.int64]
MAX_HOPS = 8  # out, in, to_nic, nic_out, up, down, nic_in, from_nic


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One directed link: its name, its achievable rate and the time that a bit takes along it."""

    name: str
    bytes_per_s: float
    latency_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """A run of links of one sort: index = start + offset."""

    start: int
    size: int
    bytes_per_s: float
    latency_ns: int


class Topology:
    """Links and routes of the first `num_nodes` nodes of a cluster (all of them by default)."""

    def __init__(self, cluster: Cluster, num_nodes: int | None = None) -> None:
        self.cluster = cluster
        domain_nodes = cluster.intra_node.num_domain_nodes
        wanted = cluster.num_nodes if num_nodes is None else num_nodes
        self.num_nodes = -(-wanted // domain_nodes) * domain_nodes  # whole domains
        self.num_gpus = self.num_nodes * cluster.gpus_per_node
        self.gpus_per_domain = cluster.gpus_per_node * domain_nodes
        self.nics_per_node = min(cluster.nic.count, cluster.gpus_per_node)
        self._blocks: dict[str, _Block] = {}
        self._num_links = 0
        self._add_intra_node()
        if self.nics_per_node:
            self._add_nics()
        if self.has_spines:
            self._add_spines()
        self.bytes_per_s = self._per_link("bytes_per_s", np.float64)
        self.latency_ns = self._per_link("latency_ns", np.int64)

    @property
    def num_links(self) -> int:
        """Number of directed links."""
        return self._num_links

    @property
    def has_spines(self) -> bool:
        """Whether messages between leaves cross a spine layer (more than one leaf is in use)."""
        fabric = self.cluster.fabric
        has_rails = fabric.kind == "rail-optimised" and self.nics_per_node > 1 and self.num_nodes > 1
        return has_rails or fabric.kind != "none" and self.num_nodes > fabric.hosts_per_leaf

    @property
    def uses_pxn(self) -> bool:
        """Whether NCCL forwards messages to another rail over NVLink."""
        is_linked = self.cluster.intra_node.kind in ("nvswitch", "mesh")
        return self.cluster.nic.pxn and self.cluster.fabric.kind == "rail-optimised" and is_linked

    def domain(self, gpu: int) -> int:
        """The NVLink domain (usually the node) of a GPU."""
        return gpu // self.gpus_per_domain

    def rail(self, gpu: int) -> int:
        """The card, among those of its node, that a GPU uses."""
        cluster = self.cluster
        return gpu % cluster.gpus_per_node * self.nics_per_node // cluster.gpus_per_node

    def gpu_links(self, gpu: int, outwards: bool) -> tuple[int, ...]:
        """The links of a GPU to, or from, the other GPUs of its domain (over PCIe: its lanes); none where there are
        none."""
        if "pair" not in self._blocks:
            block = self._blocks.get("out" if outwards else "in")
            return () if block is None else (block.start + gpu,)
        size, start = self.gpus_per_domain, self._blocks["pair"].start + gpu // self.gpus_per_domain * self.gpus_per_domain**2
        own = gpu % size
        return tuple(start + (own * size + i if outwards else i * size + own) for i in range(size) if i != own)

    def card_link(self, gpu: int, outwards: bool) -> int:
        """The link of a GPU's card into, or out of, the fabric."""
        card = gpu // self.cluster.gpus_per_node * self.nics_per_node + self.rail(gpu)
        return self._blocks["nic_out" if outwards else "nic_in"].start + card

    def first_link(self, block: str) -> int | None:
        """Index of the first link of a block of the list above; None where there is none."""
        return self._blocks[block].start if block in self._blocks else None

    @property
    def has_lanes(self) -> bool:
        """Whether traffic to the cards takes the links between GPUs (PCIe)."""
        return self.cluster.intra_node.kind == "pcie"

    def link(self, index: int) -> Link:
        """Name and figures of one link, for reports."""
        for name, block in self._blocks.items():
            if block.start <= index < block.start + block.size:
                label = self._label(name, index - block.start)
                return Link(name=label, bytes_per_s=block.bytes_per_s, latency_ns=block.latency_ns)
        raise IndexError(index)

    def names(self) -> Iterator[str]:
        """Names of all links, in the order of their indices."""
        return (self._label(name, offset) for name, block in self._blocks.items() for offset in range(block.size))

    def has_link(self, pattern: str) -> bool:
        """Whether a link's name fits `pattern`, in which * and ? stand for any characters."""
        return any(fnmatchcase(name, pattern) for name in self.names())

    def some_names(self) -> list[str]:
        """The first thousands of names: a large cluster's links differ only in their numbers."""
        return list(islice(self.names(), 4096))

    def route_matrix(self, sources: Indices, destinations: Indices) -> Indices:
        """Links from sources[i] to destinations[i] (GPU indices) in row i: shape [pairs, MAX_HOPS], -1 where unused.

        A GPU to itself uses no links.
        """
        matrix = np.full((len(sources), MAX_HOPS), -1, dtype=np.int64)
        near = (sources // self.gpus_per_domain) == (destinations // self.gpus_per_domain)
        inside = np.flatnonzero(near & (sources != destinations))
        self._fill_inside(matrix, inside, sources[inside], destinations[inside])
        between = np.flatnonzero(~near)
        if len(between):
            assert self.nics_per_node, f"{self.cluster.name} has no network between nodes"
            self._fill_between(matrix, between, sources[between], destinations[between])
        return matrix

    def _fill_inside(self, matrix: Indices, rows: Indices, sources: Indices, destinations: Indices) -> None:
        if self.cluster.intra_node.kind == "mesh":
            size = self.gpus_per_domain
            pair = (sources // size * size + sources % size) * size + destinations % size
            matrix[rows, 0] = self._blocks["pair"].start + pair
        elif self.cluster.intra_node.kind != "none":
            matrix[rows, 0] = self._blocks["out"].start + sources
            matrix[rows, 1] = self._blocks["in"].start + destinations

    def _fill_between(self, matrix: Indices, rows: Indices, sources: Indices, destinations: Indices) -> None:
        per_node, nics = self.cluster.gpus_per_node, self.nics_per_node
        senders = sources
        if self.uses_pxn:
            rails = destinations % per_node * nics // per_node
            same_rail = sources % per_node * nics // per_node == rails
            senders = np.where(same_rail, sources, sources // per_node * per_node + rails * (per_node // nics))
            moved = senders != sources
            self._fill_inside(matrix, rows[moved], sources[moved], senders[moved])
        lanes = self.has_lanes
        card_out = senders // per_node * nics + senders % per_node * nics // per_node
        card_in = destinations // per_node * nics + destinations % per_node * nics // per_node
        matrix[rows, 2] = self._blocks["out" if lanes else "to_nic"].start + senders
        matrix[rows, 3] = self._blocks["nic_out"].start + card_out
        matrix[rows, 6] = self._blocks["nic_in"].start + card_in
        matrix[rows, 7] = self._blocks["in" if lanes else "from_nic"].start + destinations
        if self.has_spines:
            self._fill_spine(matrix, rows, card_out, card_in)

    def _fill_spine(self, matrix: Indices, rows: Indices, card_out: Indices, card_in: Indices) -> None:
        leaf_out, leaf_in = self.leaf(card_out), self.leaf(card_in)
        crossing = leaf_out != leaf_in
        leaf_out, leaf_in, rows = leaf_out[crossing], leaf_in[crossing], rows[crossing]
        cables = self.uplinks_per_leaf
        cable = _ecmp(card_out[crossing], card_in[crossing], cables)
        matrix[rows, 4] = self._blocks["up"].start + leaf_out * cables + cable
        matrix[rows, 5] = self._blocks["down"].start + leaf_in * cables + cable

    def leaf(self, cards: Indices) -> Indices:
        """The leaves of cards (node x nics_per_node + card)."""
        group = cards // self.nics_per_node // self.cluster.fabric.hosts_per_leaf
        if self.cluster.fabric.kind == "rail-optimised":
            return group * self.nics_per_node + cards % self.nics_per_node
        return group

    def _add_block(self, name: str, size: int, bytes_per_s: float, latency_ns: int) -> None:
        block = _Block(start=self._num_links, size=size, bytes_per_s=bytes_per_s, latency_ns=latency_ns)
        self._blocks[name] = block
        self._num_links += size

    def _add_intra_node(self) -> None:
        intra, size = self.cluster.intra_node, self.gpus_per_domain
        rate = intra.bytes_per_s * intra.efficiency
        if intra.kind == "mesh":
            num_pairs = self.num_nodes // intra.num_domain_nodes * size * size
            self._add_block("pair", num_pairs, rate / max(1, size - 1), intra.latency_ns)
        elif intra.kind != "none":
            self._add_block("out", self.num_gpus, rate, intra.latency_ns - intra.latency_ns // 2)
            self._add_block("in", self.num_gpus, rate, intra.latency_ns // 2)

    def _add_nics(self) -> None:
        cluster, fabric = self.cluster, self.cluster.fabric
        if cluster.intra_node.kind != "pcie":
            self._add_block("to_nic", self.num_gpus, max(cluster.host.pcie_d2h_bytes_per_s, self.nic_bytes_per_s), 0)
            self._add_block("from_nic", self.num_gpus, max(cluster.host.pcie_h2d_bytes_per_s, self.nic_bytes_per_s), 0)
        num_cards = self.num_nodes * self.nics_per_node
        self._add_block("nic_out", num_cards, self.nic_bytes_per_s, cluster.nic.latency_ns + fabric.latency_ns)
        self._add_block("nic_in", num_cards, self.nic_bytes_per_s, fabric.latency_ns)

    @property
    def nic_bytes_per_s(self) -> float:
        """Achievable rate of one nic_out or nic_in link (all cards of one GPU together)."""
        nic = self.cluster.nic
        return nic.bytes_per_s * nic.efficiency * nic.count / self.nics_per_node if self.nics_per_node else 0.0

    def _add_spines(self) -> None:
        fabric = self.cluster.fabric
        num_leaves = -(-self.num_nodes // fabric.hosts_per_leaf)
        if fabric.kind == "rail-optimised":
            num_leaves *= self.nics_per_node
        rate = self._cards_per_leaf * self.nic_bytes_per_s / fabric.oversubscription / self.uplinks_per_leaf
        latency_ns = fabric.latency_ns + CABLE_NS[fabric.spine_cable]
        self._add_block("up", num_leaves * self.uplinks_per_leaf, rate, latency_ns)
        self._add_block("down", num_leaves * self.uplinks_per_leaf, rate, latency_ns)

    @property
    def _cards_per_leaf(self) -> int:
        """nic_out links into one leaf (of a leaf with all its hosts)."""
        fabric = self.cluster.fabric
        return fabric.hosts_per_leaf * (1 if fabric.kind == "rail-optimised" else self.nics_per_node)

    @property
    def uplinks_per_leaf(self) -> int:
        """Links of a leaf to the spines: 1 with adaptive routing, with ECMP as many cables as carry its share."""
        fabric = self.cluster.fabric
        if fabric.routing == "adaptive":
            return 1
        return max(1, round(self._cards_per_leaf / fabric.oversubscription))

    def _per_link(self, attribute: str, dtype: type) -> NDArray:
        blocks = self._blocks.values()
        if not blocks:
            return np.zeros(0, dtype)
        return np.concatenate([np.full(block.size, getattr(block, attribute), dtype) for block in blocks])

    def _label(self, block: str, offset: int) -> str:
        size = self.gpus_per_domain
        if block == "pair":
            return f"{self._gpu_name(offset // size)}->{self._gpu_name(offset // size // size * size + offset % size)}"
        if block in ("up", "down"):
            leaf, spine = f"leaf{offset // self.uplinks_per_leaf}", self._spine_name(offset % self.uplinks_per_leaf)
            return f"{leaf}->{spine}" if block == "up" else f"{spine}->{leaf}"
        if block in ("nic_out", "nic_in"):
            card = f"node{offset // self.nics_per_node}.nic{offset % self.nics_per_node}"
            return f"{card}->fabric" if block == "nic_out" else f"fabric->{card}"
        switch = "pcie" if self.cluster.intra_node.kind == "pcie" else "nvswitch"
        far = {"out": switch, "in": switch, "to_nic": "nic", "from_nic": "nic"}[block]
        name = self._gpu_name(offset)
        return f"{name}->{far}" if block in ("out", "to_nic") else f"{far}->{name}"

    def _spine_name(self, cable: int) -> str:
        """'spines' (all of them), 'spine3', or where several cables go to one spine 'spine3.0'."""
        fabric = self.cluster.fabric
        if fabric.routing == "adaptive":
            return "spines"
        several, spine = divmod(cable, fabric.num_spines)
        return f"spine{spine}.{several}" if self.uplinks_per_leaf > fabric.num_spines else f"spine{spine}"

    def _gpu_name(self, gpu: int) -> str:
        node, local = divmod(gpu, self.cluster.gpus_per_node)
        return f"node{node}.gpu{local}"


def _ecmp(sources: Indices, destinations: Indices, num_choices: int) -> Indices:
    """A choice in [0, num_choices) from two indices by fixed 64-bit arithmetic (the finaliser of MurmurHash3)."""
    mixed = sources.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + destinations.astype(np.uint64)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return (mixed % np.uint64(num_choices)).astype(np.int64)
