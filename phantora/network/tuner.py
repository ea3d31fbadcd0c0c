"""The candidates for one collective, and the choice among them by predicted time, as NCCL's tuner chooses.

A candidate is an algorithm with its transfers (for one byte of the operation) and a latency per protocol. Its predicted
time is latency + time of the busiest link, protocol overheads included. To add an algorithm: return one more
Candidate from `candidates`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phantora.cluster.topology import Topology
from phantora.network import constants
from phantora.network.constants import Algorithm, LinkSort, Protocol
from phantora.network.operation import Kind
from phantora.network.schedules import (
    Group, all_pairs_edges, between_domains_tree_edges, join_edges, ring_edges, scale_edges, star_edges, tree_edges,
)  # fmt: skip
from phantora.network.transfers import Edges, Transfer, drain_ns, make_transfers

NVLS_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to carry out a collective of one byte."""

    algorithm: Algorithm
    latency_ns: dict[Protocol, int]
    """Protocols that may be used, and the latency with each."""
    transfers: dict[Protocol, tuple[Transfer, ...]]
    """Flows for one byte of the operation, the protocol's own bytes included."""
    ns_per_byte: dict[Protocol, float]
    """Time of the busiest link for one byte of the operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen, kept for reports."""

    algorithm: Algorithm
    protocol: Protocol
    predicted_ns: float


def choose_algorithm(found: list[Candidate], num_bytes: int) -> tuple[Candidate, Choice]:
    """The candidate and protocol with the least predicted time for `num_bytes`; the first of equals."""
    best: tuple[Candidate, Choice] | None = None
    for candidate in found:
        for protocol, latency_ns in candidate.latency_ns.items():
            predicted = latency_ns + candidate.ns_per_byte[protocol] * num_bytes
            if best is None or predicted < best[1].predicted_ns:
                choice = Choice(algorithm=candidate.algorithm, protocol=protocol, predicted_ns=predicted)
                best = candidate, choice
    assert best is not None
    return best


def candidates(topology: Topology, kind: Kind, group: Group, root: int, dtype: str) -> list[Candidate]:
    """All ways to carry out `kind` over `group` (two GPUs or more); `root` is a GPU index."""
    builder = _Builder(topology, group)
    if kind in ("all_reduce", "barrier"):
        return builder.all_reduce(dtype)
    if kind in ("all_gather", "reduce_scatter"):
        return [builder.ring(rounds=1, open_at=None)]
    if kind in ("broadcast", "reduce"):
        return [builder.chain(root)]
    if kind == "all_to_all":
        return [builder.direct("direct", all_pairs_edges(group), num_peers=len(group.gpus) - 1)]
    if kind == "send_recv":
        return [builder.direct("p2p", Edges.of([(group.gpus[0], group.gpus[1], 1.0)]), num_peers=1)]
    assert kind in ("gather", "scatter"), kind
    edges = star_edges(group, root, inwards=kind == "gather")
    return [builder.direct("direct", edges, num_peers=len(group.gpus) - 1)]


def direct_candidate(topology: Topology, group: Group, edges: Edges) -> Candidate:
    """Point-to-point messages of given sizes at once (an all-to-all of unequal parts; the 'one byte' is the whole)."""
    return _Builder(topology, group).direct("direct", edges, num_peers=len(group.gpus) - 1)


class _Builder:
    """Candidates over one group."""

    def __init__(self, topology: Topology, group: Group) -> None:
        self.topology = topology
        self.group = group
        self.num_ranks = len(group.gpus)
        self.num_domains = len(group.domains)
        self.largest_domain = max(len(members) for members in group.domains)
        intra = topology.cluster.intra_node
        self.is_mesh = intra.kind == "mesh"
        self.near: LinkSort = "pcie" if intra.kind in ("pcie", "none") else "nvlink"
        self.architecture = constants.architecture(topology.cluster.gpu.compute_capability)
        self.wire_ns = self._wire_ns()

    def all_reduce(self, dtype: str) -> list[Candidate]:
        found = [self.ring(rounds=2, open_at=None)]
        if self.num_domains > 1:
            found.append(self.tree())
        has_nvls = self.topology.cluster.intra_node.nvls and dtype in NVLS_DTYPES
        if has_nvls and min(len(members) for members in self.group.domains) > 2:
            found.append(self.nvls() if self.num_domains == 1 else self.nvls_tree())
        return found

    def ring(self, rounds: int, open_at: int | None) -> Candidate:
        """`rounds` times round the ring, (n-1)/n of the bytes over each edge each time (Patarasuk and Yuan, 2009)."""
        share = rounds * (self.num_ranks - 1) / self.num_ranks
        edges = scale_edges(ring_edges(self.group, self.is_mesh, open_at), share)
        num_far = rounds * (self.num_domains - 1)
        latency = {p: self._ring_latency_ns(p, rounds * (self.num_ranks - 1), num_far) for p in self._protocols()}
        return self._candidate("ring", edges, latency, 1.0)

    def chain(self, root: int) -> Candidate:
        """Broadcast or reduce, pipelined along the ring: all the bytes over each edge but the one into the root."""
        edges = ring_edges(self.group, self.is_mesh, root)
        latency = {p: self._ring_latency_ns(p, self.num_ranks - 1, self.num_domains - 1) for p in self._protocols()}
        return self._candidate("ring", edges, latency, 1.0)

    def tree(self) -> Candidate:
        """A double binary tree between domains, chains inside."""
        latency = {}
        for protocol in self._protocols():
            near_ns = constants.STEP_NS["tree", self.near, protocol] * self._crowding(protocol)
            far_ns = constants.STEP_NS["tree", "net", protocol] + self.wire_ns
            depth = math.ceil(math.log2(self.num_domains))
            steps_ns = 2 * ((self.largest_domain - 1) * near_ns + depth * far_ns)
            latency[protocol] = constants.BASE_NS["tree", protocol] + round(steps_ns)
        return self._candidate("tree", tree_edges(self.group, self.is_mesh), latency, 1 / constants.TREE_EFFICIENCY)

    def nvls(self) -> Candidate:
        """The switch reduces and multicasts: each GPU sends and receives (1 + 1/n) of the bytes."""
        return self._candidate("nvls", self._nvls_edges(), {"Simple": self.architecture.nvls_base_ns}, 1.0)

    def nvls_tree(self) -> Candidate:
        """NVLS inside each domain, the double binary tree between them."""
        edges = join_edges(self._nvls_edges(), between_domains_tree_edges(self.group))
        depth = math.ceil(math.log2(self.num_domains))
        far_ns = constants.NVLS_TREE_NET_STEP_NS + self.wire_ns
        return self._candidate("nvls_tree", edges, {"Simple": constants.NVLS_TREE_BASE_NS + 2 * depth * far_ns}, 1.0)

    def direct(self, algorithm: Algorithm, edges: Edges, num_peers: int) -> Candidate:
        """Point-to-point messages, all at once."""
        sort = "net" if self.num_domains > 1 else self.near
        peers_ns = constants.P2P_PEER_NS[sort] * (num_peers - 1)
        wire_ns = self.wire_ns if self.num_domains > 1 else 0
        latency: dict[Protocol, int] = {}
        for protocol in ("LL", "Simple"):
            step_ns = constants.STEP_NS["ring", sort, protocol]
            latency[protocol] = constants.P2P_BASE_NS[protocol] + step_ns + peers_ns + wire_ns
        return self._candidate(algorithm, edges, latency, 1.0)

    def _nvls_edges(self) -> Edges:
        """A closed ring inside each domain loads each GPU's links into and out of the switch once."""
        parts = [
            scale_edges(
                ring_edges(Group(gpus=members, domains=(members,)), is_mesh=False),
                (1 + 1 / len(members)) * constants.NVLS_OVERHEAD,
            )
            for members in self.group.domains
        ]
        edges = parts[0]
        for part in parts[1:]:
            edges = join_edges(edges, part)
        return edges

    def _candidate(
        self, algorithm: Algorithm, edges: Edges, latency_ns: dict[Protocol, int], overhead: float
    ) -> Candidate:
        plain = make_transfers(self.topology, edges)
        transfers: dict[Protocol, tuple[Transfer, ...]] = {}
        for protocol in latency_ns:
            factors = [overhead / self._efficiency(algorithm, protocol, flow.is_between_domains) for flow in plain]
            transfers[protocol] = tuple(flow.scaled(factor) for flow, factor in zip(plain, factors))
        ns_per_byte = {protocol: drain_ns(self.topology, transfers[protocol]) for protocol in latency_ns}
        return Candidate(algorithm=algorithm, latency_ns=latency_ns, transfers=transfers, ns_per_byte=ns_per_byte)

    def _protocols(self) -> list[Protocol]:
        return [p for p in constants.PROTOCOLS if self.near == "nvlink" or constants.PCIE_EFFICIENCY[p] > 0]

    def _efficiency(self, algorithm: Algorithm, protocol: Protocol, is_between_domains: bool) -> float:
        if is_between_domains:
            return constants.NET_EFFICIENCY[protocol]
        if self.near != "nvlink":
            return constants.PCIE_EFFICIENCY[protocol]
        is_pair = algorithm == "ring" and protocol == "Simple" and self.num_ranks == 2
        return (constants.PAIR_EFFICIENCY if is_pair else 1.0) * self.architecture.nvlink_efficiency[protocol]

    def _ring_latency_ns(self, protocol: Protocol, num_steps: int, num_far: int) -> int:
        """base + steps x step; inside one NVLink domain with the fitted constants, else with those of NCCL's tuner."""
        if self.num_domains == 1 and self.near == "nvlink":
            return self.architecture.ring_base_ns[protocol] + num_steps * self.architecture.ring_step_ns[protocol]
        near_ns = constants.STEP_NS["ring", self.near, protocol] * self._crowding(protocol)
        far_ns = constants.STEP_NS["ring", "net", protocol] + self.wire_ns
        steps_ns = (num_steps - num_far) * near_ns + num_far * far_ns
        return constants.BASE_NS["ring", protocol] + round(steps_ns)

    def _crowding(self, protocol: Protocol) -> float:
        """LL steps inside a node are slower when the collective spans nodes ([tuning])."""
        return 1.8 if protocol == "LL" and self.num_domains > 1 else 1.0

    def _wire_ns(self) -> int:
        """Latency of the links between the first two domains of the group; 0 inside one domain."""
        if self.num_domains == 1:
            return 0
        pair = Edges.of([(self.group.domains[0][0], self.group.domains[1][0], 1.0)])
        row = self.topology.route_matrix(pair.sources, pair.destinations)[0]
        return int(self.topology.latency_ns[row[row >= 0]].sum())
