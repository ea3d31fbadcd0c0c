"""All ways in which NCCL can carry out one collective over one group: edges, latencies, efficiencies.

Latencies follow the formulas of NCCL's tuner (src/graph/tuning.cc), rates follow from the links that the edges cross.
"""

from __future__ import annotations

import numpy as np

from phantora.cluster.all_pairs import can_count
from phantora.cluster.topology import Topology
from phantora.network import constants
from phantora.network.chunks import (
    ChunkRule, Fill, nvls_chunk_bytes, nvls_tree_chunk_bytes, tree_chunk_rule, wide_nvls_tree_chunk_bytes,
)  # fmt: skip
from phantora.network.constants import Algorithm, LinkSort, Protocol
from phantora.network.environment import NcclEnvironment
from phantora.network.group_facts import GroupFacts
from phantora.network.judgement import Judged
from phantora.network.operation import Kind
from phantora.network.schedules import (
    Group, all_pairs_edges, between_domains_tree_edges, closed_rings_inside_domains, join_edges, pat_edges, ring_edges,
    scale_edges, star_edges, tree_edges,
)  # fmt: skip
from phantora.network.tails import BeyondCache, Duplex, LastReceive, Tail, TreeDip, Widening
from phantora.network.transfers import Edges, Transfer, all_pairs_transfers, drain_ns, make_transfers
from phantora.network.tuner import Candidate


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
        return [builder.direct("direct", builder.all_pairs(), num_peers=len(group.gpus) - 1, is_duplex=True)]
    assert kind in ("gather", "scatter"), kind
    edges = star_edges(group, root, inwards=kind == "gather")
    return [builder.direct("direct", edges, num_peers=len(group.gpus) - 1, is_duplex=False)]


def message_candidate(topology: Topology, path: tuple[int, ...], environment: NcclEnvironment) -> Candidate:
    """Messages of one size at once, each GPU of `path` to the one that follows it."""
    pairs = list(zip(path, path[1:]))
    builder = _Builder(topology, Group.of(topology, tuple(dict.fromkeys(path))), environment)
    is_duplex = len({source for source, _ in pairs} & {destination for _, destination in pairs}) > 0
    edges = Edges.of([(source, destination, 1.0) for source, destination in pairs])
    return builder.direct("p2p", edges, num_peers=1, is_duplex=is_duplex)


def direct_candidate(topology: Topology, group: Group, edges: Edges, environment: NcclEnvironment) -> Candidate:
    """Point-to-point messages of given sizes at once (an all-to-all of unequal parts; the 'one byte' is the whole)."""
    builder = _Builder(topology, group, environment)
    return builder.direct("direct", edges, num_peers=len(group.gpus) - 1, is_duplex=True, message_share=0.0)


class _Builder(GroupFacts):
    """Candidates over one group."""

    def all_reduce(self, dtype: str) -> list[Candidate]:
        found = [self.ring(rounds=2), self.tree()]
        if self.has_nvls(dtype):
            found.append(self.nvls(1 + 1 / self.largest_domain, 2) if self.num_domains == 1 else self.nvls_tree())
        return found

    def gather_or_scatter(self, dtype: str) -> list[Candidate]:
        found = [self.ring(rounds=1)]
        if self.num_domains == 1 and self.has_nvls(dtype) and self.num_ranks <= constants.NVLS_MAX_HEADS:
            found.append(self.nvls(1.0, 1))  # each GPU's block once out, all blocks in; a reduce-scatter the other way
        if self.num_domains == self.num_ranks and self.num_ranks > 2:
            found.append(self.pat())
        return found

    def ring(self, rounds: int) -> Candidate:
        """`rounds` times round the ring, (n-1)/n of the bytes over each edge each time (Patarasuk and Yuan, 2009)."""
        steps = rounds * (self.num_ranks - 1)
        per_edge = steps / self.num_ranks
        edges = scale_edges(ring_edges(self.group, self.is_mesh), per_edge)
        far = (2 * self.num_domains if rounds == 2 else self.num_domains - 1) if self.num_domains > 1 else 0
        far = min(far, steps)
        latency = {p: self.ring_latency_ns(p, steps, far, has_last_receive=True) for p in self.protocols()}
        tails: dict[Protocol, tuple[Tail, ...]] = {}
        if self.is_in_nvlink:  # elsewhere a step takes far longer than a copy
            tails = {p: self._ring_tails(p, per_edge, steps) for p in latency}
        judge = self.judge.all_reduce if rounds == 2 else self.judge.gather
        return self._candidate("ring", edges, latency, 1.0, tails=tails, judged={p: judge("ring", p) for p in latency})

    def chain(self, root: int) -> Candidate:
        """Broadcast or reduce, pipelined along the ring: all the bytes over each edge but the one into the root."""
        edges = ring_edges(self.group, self.is_mesh, root)
        steps, far = self.num_ranks - 1, self.num_domains - 1
        latency = {p: self.ring_latency_ns(p, steps, far, has_last_receive=False) for p in self.protocols()}
        tails: dict[Protocol, tuple[Tail, ...]] = {}
        if self.is_in_nvlink:
            tails = {p: self._ring_tails(p, 1.0, 0) for p in latency}
        judged = {p: self.judge.chain(p) for p in latency}
        return self._candidate("ring", edges, latency, 1.0, tails=tails, judged=judged)

    def _ring_tails(self, protocol: Protocol, per_edge: float, num_steps: int) -> tuple[Tail, ...]:
        """Inside one NVLink domain; num_steps: those that send before the last receive, 0 where there is none."""
        found: list[Tail] = []
        share = min(1.0, self.num_channels(constants.MAX_CHANNELS) / constants.NVLINK_CHANNELS)
        rate = share * self.architecture.nvlink_efficiency[protocol]
        if protocol == "LL":
            first, last = constants.WIDENING_BYTES
            found.append(Widening(first_bytes=first, last_bytes=last, ns_per_doubling=constants.WIDENING_NS))
            cached = share * self.architecture.cached_ll_efficiency
            lost = self.near_ns_per_byte * per_edge * (1 / rate - 1 / cached)
            found.append(BeyondCache(link_bytes_per_byte=per_edge, extra_ns_per_byte=lost))
            rate = cached
        if num_steps:
            step_ns = self.near_ns_per_byte * per_edge / num_steps / rate
            found.append(LastReceive(
                link_bytes_per_byte=per_edge, step_ns_per_byte=step_ns, num_steps=num_steps, is_ll=protocol == "LL"
            ))  # fmt: skip
        return tuple(found)

    def tree(self) -> Candidate:
        """A double binary tree between domains, chains inside."""
        latency = {}
        for protocol in self.protocols():
            near_ns = self.near_step_ns("tree", protocol)
            far_ns = constants.STEP_NS["tree", "net", protocol] + self.wire_ns
            steps_ns = 2 * ((self.largest_domain - 1) * near_ns + self.depth * far_ns)
            latency[protocol] = constants.BASE_NS["tree", protocol] + round(steps_ns)
        share = constants.TREE_EFFICIENCY if self.num_domains > 1 else constants.TREE_ONE_NODE_EFFICIENCY
        hops = self.largest_domain - 1 + self.depth
        return self._candidate(
            "tree", tree_edges(self.group, self.is_mesh), latency, 1 / share, rule=tree_chunk_rule(hops),
            num_concurrent=self.usual_channels(), near_stages=2 * (self.largest_domain - 1),
            judged={p: self.judge.all_reduce("tree", p) for p in latency},
        )  # fmt: skip

    def nvls(self, bytes_per_link: float, rounds: int) -> Candidate:
        """The switch reduces and multicasts. All-reduce: each GPU sends and receives (1 + 1/n) of the bytes."""
        latency: dict[Protocol, int] = {"Simple": self.near_step_ns("nvls", "Simple")}
        judge = self.judge.all_reduce if rounds == 2 else self.judge.gather
        per_link = bytes_per_link / self.nvls_rate()
        if self.num_ranks > constants.NVLS_MAX_HEADS:  # heads cannot divide the links among all: as the tuner has it
            per_link = max(per_link, judge("nvls", "Simple").ns_per_byte / self.near_ns_per_byte)
        edges = scale_edges(closed_rings_inside_domains(self.group), per_link)
        return self._candidate(
            "nvls", edges, latency, 1.0, rule=nvls_chunk_bytes, num_concurrent=self.nvls_concurrency(),
            near_stages=constants.NVLS_FILL_STAGES, judged={"Simple": judge("nvls", "Simple")},
        )  # fmt: skip

    def nvls_tree(self) -> Candidate:
        """NVLS inside each domain, the double binary tree between them."""
        passes = (1 + 1 / self.largest_domain) / self.nvls_rate()
        channel_rate = self.architecture.channel_nvls_tree[min(self.num_domains, 3) - 1] * self.group.num_channels
        bound_ns = 2 * (self.num_ranks - 1) / self.num_ranks / channel_rate  # of a byte, by what channels carry
        if self.largest_domain > constants.NVLS_MAX_HEADS:
            bound_ns = max(bound_ns, self.judge.all_reduce("nvls_tree", "Simple").ns_per_byte)
        inside = scale_edges(closed_rings_inside_domains(self.group), max(passes, bound_ns / self.near_ns_per_byte))
        edges = join_edges(inside, between_domains_tree_edges(self.group))
        far_ns = constants.NVLS_TREE_STEP_NS + self.wire_ns
        latency: dict[Protocol, int] = {"Simple": self.near_step_ns("nvls", "Simple") + round(2 * self.depth * far_ns)}
        rule = wide_nvls_tree_chunk_bytes if self.num_domains >= 4 else nvls_tree_chunk_bytes
        return self._candidate(
            "nvls_tree", edges, latency, 1.0, rule=rule, num_concurrent=self.nvls_concurrency(),
            near_stages=constants.NVLS_FILL_STAGES, judged={"Simple": self.judge.all_reduce("nvls_tree", "Simple")},
        )  # fmt: skip

    def pat(self) -> Candidate:
        """Parallel aggregated trees, one GPU per domain: log2(n) rounds."""
        rounds = (self.num_ranks - 1).bit_length()
        round_ns = (constants.STEP_NS["pat", "net", "Simple"] + self.wire_ns) * constants.PAT_STEP_SHARE
        latency = constants.BASE_NS["pat", "Simple"] + rounds * round_ns + self.num_ranks * constants.PAT_RANK_NS
        return self._candidate("pat", pat_edges(self.group), {"Simple": round(latency)}, 1 / constants.PAT_EFFICIENCY)

    def all_pairs(self) -> tuple[Transfer, ...]:
        """What every GPU sends to every other one, 1/n of a byte each."""
        if can_count(self.topology):
            return all_pairs_transfers(self.topology, np.array(self.group.gpus, dtype=np.int64))
        return make_transfers(self.topology, all_pairs_edges(self.group))

    def direct(
        self, algorithm: Algorithm, edges: Edges | tuple[Transfer, ...], num_peers: int, is_duplex: bool, message_share: float | None = None
    ) -> Candidate:
        """Point-to-point messages, all at once. message_share: of the operation's bytes in one message (0: unknown)."""
        sort: LinkSort = "net" if self.num_domains > 1 else self.near
        peers_ns = constants.P2P_PEER_NS[sort] * (num_peers - 1)
        latency: dict[Protocol, int] = {}
        for protocol in ("LL", "Simple") if self.is_ordered() else ("Simple",):
            step_ns = constants.STEP_NS["ring", sort, protocol] if sort != "nvlink" else 0
            message_ns = self.wire_ns if self.num_domains > 1 else self.near_wire_ns
            latency[protocol] = round(constants.P2P_BASE_NS[protocol] + max(0, step_ns + peers_ns + message_ns))
        share = (1.0 if algorithm == "p2p" else 1 / self.num_ranks) if message_share is None else message_share
        limits: dict[Protocol, int] = {}
        tails: list[Tail] = []
        if share:
            limits = {"LL": round(constants.P2P_LL_MAX_BYTES / share)} if "LL" in latency else {}
            first, last = (round(bound / share) for bound in constants.P2P_WIDENING_BYTES)
            tails.append(Widening(first_bytes=first, last_bytes=last, ns_per_doubling=constants.P2P_WIDENING_NS))
        if is_duplex:
            latency = {p: ns + constants.P2P_DUPLEX_BASE_NS for p, ns in latency.items()}
            edges = edges if isinstance(edges, tuple) else make_transfers(self.topology, edges)
            ns_per_byte = drain_ns(self.topology, edges)
            tails.append(Duplex(ns_per_byte=ns_per_byte))
        return self._candidate(
            algorithm, edges, latency, 1.0, tails={p: tuple(tails) for p in latency}, most_bytes=limits
        )

    def _candidate(
        self, algorithm: Algorithm, edges: Edges | tuple[Transfer, ...], latency_ns: dict[Protocol, int], overhead: float, *,
        rule: ChunkRule | None = None, num_concurrent: int = 1, near_stages: int = 0,
        tails: dict[Protocol, tuple[Tail, ...]] | None = None, judged: dict[Protocol, Judged] | None = None,
        most_bytes: dict[Protocol, int] | None = None,
    ) -> Candidate:  # fmt: skip
        plain = edges if isinstance(edges, tuple) else make_transfers(self.topology, edges)
        transfers: dict[Protocol, tuple[Transfer, ...]] = {}
        for protocol in latency_ns:
            factors = [overhead / self.efficiency(algorithm, protocol, flow.is_between_domains) for flow in plain]
            transfers[protocol] = tuple(flow.scaled(factor) for flow, factor in zip(plain, factors))
        ns_per_byte = {protocol: drain_ns(self.topology, transfers[protocol]) for protocol in latency_ns}
        fills = {}
        if rule is not None and "Simple" in latency_ns:
            ns = self._fill_ns_per_byte(algorithm, transfers["Simple"], near_stages)
            fills["Simple"] = Fill(rule=rule, num_concurrent=num_concurrent, ns_per_byte=ns)
        tails = dict(tails or {})
        if algorithm == "tree" and self.num_domains > 1:
            for protocol in latency_ns:
                if protocol != "Simple":
                    factors_of = constants.TREE_CORRECTION[protocol]
                    tails[protocol] = (TreeDip(factors=factors_of, ns_per_byte=ns_per_byte[protocol]),)
        return Candidate(
            algorithm=algorithm, latency_ns=latency_ns, transfers=transfers, ns_per_byte=ns_per_byte, fills=fills,
            tails=tails, judged=judged or {}, most_bytes=most_bytes or {},
        )  # fmt: skip

    def _fill_ns_per_byte(self, algorithm: Algorithm, transfers: tuple[Transfer, ...], near_stages: int) -> float:
        """Stages inside a domain and, twice the depth of the tree, between domains, each with the time of a byte on
        its links (between domains: once over all cards)."""
        near = self.near_ns_per_byte
        if algorithm != "tree":
            near = drain_ns(self.topology, tuple(flow for flow in transfers if not flow.is_between_domains))
        far = 0.0
        if self.num_domains > 1:
            cards = min(self.group.num_channels, self.topology.nics_per_node * self.domain_nodes)
            far = 1e9 / (cards * self.topology.nic_bytes_per_s)
        return near_stages * near + 2 * self.depth * far
