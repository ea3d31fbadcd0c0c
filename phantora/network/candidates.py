"""All ways in which NCCL can carry out one collective over one group: edges, latencies, efficiencies.

Latencies follow the formulas of NCCL's tuner (src/graph/tuning.cc), rates follow from the links that the edges cross.
"""

from __future__ import annotations

from phantora.cluster.topology import Topology
from phantora.network import constants
from phantora.network.chunks import (
    ChunkRule, Fill, nvls_chunk_bytes, nvls_tree_chunk_bytes, tree_chunk_rule, wide_nvls_tree_chunk_bytes,
)  # fmt: skip
from phantora.network.constants import Algorithm, LinkSort, Protocol
from phantora.network.environment import NcclEnvironment
from phantora.network.operation import Kind
from phantora.network.schedules import (
    Group, all_pairs_edges, between_domains_tree_edges, closed_rings_inside_domains, join_edges, pat_edges, ring_edges,
    scale_edges, star_edges, tree_edges,
)  # fmt: skip
from phantora.network.transfers import Edges, Transfer, drain_ns, make_transfers
from phantora.network.tuner import Candidate

NVLS_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64")


def candidates(
    topology: Topology, kind: Kind, group: Group, root: int, dtype: str, environment: NcclEnvironment
) -> list[Candidate]:
    """All ways to carry out `kind` over `group` (two GPUs or more); `root` is a GPU index."""
    builder = _Builder(topology, group, environment)
    if kind in ("all_reduce", "barrier"):
        return builder.all_reduce(dtype)
    if kind in ("all_gather", "reduce_scatter"):
        return builder.gather_or_scatter(dtype)
    if kind in ("broadcast", "reduce"):
        return [builder.chain(root)]
    if kind == "all_to_all":
        edges = all_pairs_edges(group)
        return [builder.direct("direct", edges, num_peers=len(group.gpus) - 1, is_duplex=True)]
    if kind == "send_recv":
        return [builder.direct("p2p", Edges.of([(group.gpus[0], group.gpus[1], 1.0)]), num_peers=1, is_duplex=False)]
    assert kind in ("gather", "scatter"), kind
    edges = star_edges(group, root, inwards=kind == "gather")
    return [builder.direct("direct", edges, num_peers=len(group.gpus) - 1, is_duplex=False)]


def direct_candidate(topology: Topology, group: Group, edges: Edges, environment: NcclEnvironment) -> Candidate:
    """Point-to-point messages of given sizes at once (an all-to-all of unequal parts; the 'one byte' is the whole)."""
    builder = _Builder(topology, group, environment)
    return builder.direct("direct", edges, num_peers=len(group.gpus) - 1, is_duplex=True)


class _Builder:
    """Candidates over one group."""

    def __init__(self, topology: Topology, group: Group, environment: NcclEnvironment) -> None:
        cluster = topology.cluster
        self.topology, self.group, self.environment = topology, group, environment
        self.num_ranks = len(group.gpus)
        self.num_domains = len(group.domains)
        self.largest_domain = max(len(members) for members in group.domains)
        intra = cluster.intra_node
        self.is_mesh = intra.kind == "mesh"
        self.near: LinkSort = "pcie" if intra.kind in ("pcie", "none") else "nvlink"
        self.near_ns_per_byte = 1e9 / (intra.bytes_per_s * intra.efficiency) if intra.bytes_per_s else 0.0
        self.architecture = constants.architecture(cluster.gpu.compute_capability)
        self.wire_ns = self._wire_ns()
        self.depth = (self.num_domains - 1).bit_length()  # of a binary tree over the domains

    def all_reduce(self, dtype: str) -> list[Candidate]:
        found = [self.ring(rounds=2), self.tree()]
        if self._has_nvls(dtype):
            found.append(self.nvls(1 + 1 / self.largest_domain) if self.num_domains == 1 else self.nvls_tree())
        return found

    def gather_or_scatter(self, dtype: str) -> list[Candidate]:
        found = [self.ring(rounds=1)]
        if self.num_domains == 1 and self._has_nvls(dtype):
            found.append(self.nvls(1.0))  # each GPU's block once out, all blocks in; a reduce-scatter the other way
        if self.num_domains == self.num_ranks and self.num_ranks > 2:
            found.append(self.pat())
        return found

    def ring(self, rounds: int) -> Candidate:
        """`rounds` times round the ring, (n-1)/n of the bytes over each edge each time (Patarasuk and Yuan, 2009)."""
        steps = rounds * (self.num_ranks - 1)
        edges = scale_edges(ring_edges(self.group, self.is_mesh), steps / self.num_ranks)
        far = (2 * self.num_domains if rounds == 2 else self.num_domains - 1) if self.num_domains > 1 else 0
        far = min(far, steps)
        latency = {p: self._ring_latency_ns(p, steps, far, has_last_receive=True) for p in self._protocols()}
        plateau = (float("inf"), 1.0)
        if rounds == 2 and self.num_domains > 1:
            least = constants.RING_PLATEAU_BYTES * self._usual_channels() * self.num_ranks
            plateau = (float(least), constants.RING_PLATEAU_FACTOR)
        is_nvlink = self.num_domains == 1 and self.near == "nvlink"  # elsewhere a step takes far longer than a copy
        overhead = (steps + constants.RECEIVE_SHARE) / steps if is_nvlink else 1.0
        return self._candidate("ring", edges, latency, overhead, plateau=plateau)

    def chain(self, root: int) -> Candidate:
        """Broadcast or reduce, pipelined along the ring: all the bytes over each edge but the one into the root."""
        edges = ring_edges(self.group, self.is_mesh, root)
        steps, far = self.num_ranks - 1, self.num_domains - 1
        latency = {p: self._ring_latency_ns(p, steps, far, has_last_receive=False) for p in self._protocols()}
        return self._candidate("ring", edges, latency, 1.0)

    def tree(self) -> Candidate:
        """A double binary tree between domains, chains inside."""
        latency = {}
        for protocol in self._protocols():
            near_ns = constants.STEP_NS["tree", self.near, protocol]
            far_ns = constants.STEP_NS["tree", "net", protocol] + self.wire_ns
            steps_ns = 2 * ((self.largest_domain - 1) * near_ns + self.depth * far_ns)
            latency[protocol] = constants.BASE_NS["tree", protocol] + round(steps_ns)
        share = constants.TREE_EFFICIENCY if self.num_domains > 1 else constants.TREE_ONE_NODE_EFFICIENCY
        hops = self.largest_domain - 1 + self.depth
        return self._candidate(
            "tree", tree_edges(self.group, self.is_mesh), latency, 1 / share, rule=tree_chunk_rule(hops),
            num_concurrent=self._usual_channels(), near_stages=2 * (self.largest_domain - 1),
        )  # fmt: skip

    def nvls(self, bytes_per_link: float) -> Candidate:
        """The switch reduces and multicasts. All-reduce: each GPU sends and receives (1 + 1/n) of the bytes."""
        edges = scale_edges(closed_rings_inside_domains(self.group), bytes_per_link / self._nvls_rate())
        latency = {"Simple": constants.STEP_NS["nvls", "nvlink", "Simple"]}
        return self._candidate(
            "nvls", edges, latency, 1.0, rule=nvls_chunk_bytes, num_concurrent=self._nvls_concurrency(),
            near_stages=constants.NVLS_FILL_STAGES,
        )  # fmt: skip

    def nvls_tree(self) -> Candidate:
        """NVLS inside each domain, the double binary tree between them."""
        inside = scale_edges(
            closed_rings_inside_domains(self.group), (1 + 1 / self.largest_domain) / self._nvls_rate()
        )
        edges = join_edges(inside, between_domains_tree_edges(self.group))
        far_ns = constants.STEP_NS["nvls_tree", "net", "Simple"] + self.wire_ns
        latency = {"Simple": constants.STEP_NS["nvls", "nvlink", "Simple"] + round(2 * self.depth * far_ns)}
        rule = wide_nvls_tree_chunk_bytes if self.num_domains >= 4 else nvls_tree_chunk_bytes
        return self._candidate(
            "nvls_tree", edges, latency, 1.0, rule=rule, num_concurrent=self._nvls_concurrency(),
            near_stages=constants.NVLS_FILL_STAGES,
        )  # fmt: skip

    def pat(self) -> Candidate:
        """Parallel aggregated trees, one GPU per domain: log2(n) rounds."""
        rounds = (self.num_ranks - 1).bit_length()
        round_ns = (constants.STEP_NS["pat", "net", "Simple"] + self.wire_ns) * constants.PAT_STEP_SHARE
        latency = constants.BASE_NS["pat", "Simple"] + rounds * round_ns + self.num_ranks * constants.PAT_RANK_NS
        return self._candidate("pat", pat_edges(self.group), {"Simple": round(latency)}, 1 / constants.PAT_EFFICIENCY)

    def direct(self, algorithm: Algorithm, edges: Edges, num_peers: int, is_duplex: bool) -> Candidate:
        """Point-to-point messages, all at once."""
        sort: LinkSort = "net" if self.num_domains > 1 else self.near
        peers_ns = constants.P2P_PEER_NS[sort] * (num_peers - 1)
        latency: dict[Protocol, int] = {}
        for protocol in ("LL", "Simple") if self._is_ordered() else ("Simple",):
            step_ns = constants.STEP_NS["ring", sort, protocol]
            message_ns = self.wire_ns if self.num_domains > 1 else 0
            latency[protocol] = round(constants.P2P_BASE_NS[protocol] + step_ns + peers_ns + message_ns)
        overhead = 1 / constants.P2P_DUPLEX_EFFICIENCY if is_duplex else 1.0
        return self._candidate(algorithm, edges, latency, overhead)

    def _has_nvls(self, dtype: str) -> bool:
        intra = self.topology.cluster.intra_node
        is_possible = intra.nvls and self.environment.nvls and self.architecture.nvls_efficiency > 0
        return is_possible and dtype in NVLS_DTYPES and min(len(members) for members in self.group.domains) > 2

    def _nvls_rate(self) -> float:
        channels = self._num_channels(constants.NVLS_CHANNELS)
        return self.architecture.nvls_efficiency * min(1.0, channels / constants.NVLS_CHANNELS)

    def _nvls_concurrency(self) -> int:
        return self._num_channels(constants.NVLS_CHANNELS) * self.largest_domain

    def _num_channels(self, usual: int) -> int:
        """Channels that NCCL runs, within what the environment allows."""
        return max(self.environment.min_channels, min(usual, self.environment.max_channels))

    def _usual_channels(self) -> int:
        """Of rings and trees: between nodes two for each card in use, as NCCL's search doubles what it finds."""
        cards = min(self.topology.nics_per_node, self.group.num_channels)
        return self._num_channels(constants.MAX_CHANNELS if self.num_domains == 1 else 2 * max(1, cards))

    def _candidate(
        self, algorithm: Algorithm, edges: Edges, latency_ns: dict[Protocol, int], overhead: float, *,
        rule: ChunkRule | None = None, num_concurrent: int = 1, near_stages: int = 0,
        plateau: tuple[float, float] = (float("inf"), 1.0),
    ) -> Candidate:  # fmt: skip
        plain = make_transfers(self.topology, edges)
        transfers: dict[Protocol, tuple[Transfer, ...]] = {}
        for protocol in latency_ns:
            factors = [overhead / self._efficiency(algorithm, protocol, flow.is_between_domains) for flow in plain]
            transfers[protocol] = tuple(flow.scaled(factor) for flow, factor in zip(plain, factors))
        ns_per_byte = {protocol: drain_ns(self.topology, transfers[protocol]) for protocol in latency_ns}
        fills = {}
        if rule is not None and "Simple" in latency_ns:
            ns = self._fill_ns_per_byte(algorithm, transfers["Simple"], near_stages)
            fills["Simple"] = Fill(rule=rule, num_concurrent=num_concurrent, ns_per_byte=ns)
        return Candidate(
            algorithm=algorithm, latency_ns=latency_ns, transfers=transfers, ns_per_byte=ns_per_byte, fills=fills,
            ll_misjudged=self._ll_misjudged(), plateau=plateau,
        )  # fmt: skip

    def _ll_misjudged(self) -> float:
        if self.num_domains > 1 or self.near != "nvlink":
            return 1.0
        return self.architecture.nvlink_efficiency["LL"] / self.architecture.ll_judged_share

    def _fill_ns_per_byte(self, algorithm: Algorithm, transfers: tuple[Transfer, ...], near_stages: int) -> float:
        """Stages inside a domain and, twice the depth of the tree, between domains, each with the time of a byte on
        its links."""
        near = self.near_ns_per_byte
        if algorithm != "tree":
            near = drain_ns(self.topology, tuple(flow for flow in transfers if not flow.is_between_domains))
        far = drain_ns(self.topology, tuple(flow for flow in transfers if flow.is_between_domains))
        slowest = max(near, far) if algorithm != "tree" else far
        return near_stages * near + 2 * self.depth * slowest

    def _is_ordered(self) -> bool:
        """Whether LL and LL128 may be used: not where the transport may reorder the writes of one message."""
        return self.num_domains == 1 or self.topology.cluster.nic.ordered_writes

    def _protocols(self) -> list[Protocol]:
        usable = constants.PROTOCOLS if self._is_ordered() else ("Simple",)
        return [p for p in usable if self.near == "nvlink" or constants.PCIE_EFFICIENCY[p] > 0]

    def _efficiency(self, algorithm: Algorithm, protocol: Protocol, is_between_domains: bool) -> float:
        if is_between_domains:
            return self._net_efficiency(algorithm, protocol)
        share = 1.0
        if algorithm in ("ring", "tree"):
            share = min(1.0, self._num_channels(constants.MAX_CHANNELS) / constants.NVLINK_CHANNELS)
        if algorithm == "tree" and protocol == "LL128" and self.num_domains == 1:
            share *= constants.TREE_ONE_NODE_LL128_SHARE
        if self.near != "nvlink":
            return constants.PCIE_EFFICIENCY[protocol]
        return share * self.architecture.nvlink_efficiency[protocol]

    def _net_efficiency(self, algorithm: Algorithm, protocol: Protocol) -> float:
        """Share of the cards' rate: of the protocol, of the channels (one for each card at least)."""
        rails = self.group.num_channels
        share = min(1.0, self._num_channels(constants.MAX_CHANNELS) / rails)
        if protocol == "LL128" and self.largest_domain == 1:
            return share * constants.NET_LL128_ONE_GPU_EFFICIENCY
        if protocol == "LL" and algorithm in ("ring", "tree"):
            most = self.architecture.ll_net_bytes_per_s[self.num_domains > 2]
            return share * min(constants.NET_EFFICIENCY["LL"], most / (rails * self.topology.nic_bytes_per_s))
        return share * constants.NET_EFFICIENCY[protocol]

    def _ring_latency_ns(self, protocol: Protocol, num_steps: int, num_far: int, has_last_receive: bool) -> int:
        """base + steps x step; inside one NVLink domain with the generation's constants, else with the tuner's."""
        base_ns = constants.BASE_NS["ring", protocol]
        if self.num_domains == 1:
            step_ns = constants.STEP_NS["ring", self.near, protocol]
            if self.near == "nvlink":
                step_ns = self.architecture.ring_step_ns[protocol]
            return base_ns + (num_steps + (protocol == "Simple" and has_last_receive)) * step_ns
        factor = constants.NET_OVERHEAD_SIMPLE_FACTOR if protocol == "Simple" else 1
        near_ns = max(constants.STEP_NS["ring", self.near, protocol], constants.NET_OVERHEAD_NS * factor)
        far_ns = constants.STEP_NS["ring", "net", protocol] + self.wire_ns
        return base_ns + round((num_steps - num_far) * near_ns + num_far * far_ns)

    def _wire_ns(self) -> int:
        """Latency of the links between the first two domains of the group; 0 inside one domain."""
        if self.num_domains == 1:
            return 0
        pair = Edges.of([(self.group.domains[0][0], self.group.domains[1][0], 1.0)])
        row = self.topology.route_matrix(pair.sources, pair.destinations)[0]
        return int(self.topology.latency_ns[row[row >= 0]].sum())
