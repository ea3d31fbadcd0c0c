"""What a group of GPUs means to NCCL's algorithms: channels, protocols, latencies, shares of the links' rates."""

from __future__ import annotations

from functools import cached_property

from phantora.cluster.topology import Topology
from phantora.network import constants
from phantora.network.constants import Algorithm, LinkSort, Protocol
from phantora.network.environment import NcclEnvironment
from phantora.network.judgement import Judge
from phantora.network.schedules import Group
from phantora.network.transfers import Edges

NVLS_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64", "uint32", "uint64")


class GroupFacts:
    """Facts about one group (two GPUs or more) on one topology in one environment."""

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
        self.wire_ns = self._find_wire_ns()
        self.near_wire_ns = intra.latency_ns - constants.NEAR_WIRE_NS[self.near]
        self.depth = (self.num_domains - 1).bit_length()  # of a binary tree over the domains

    @cached_property
    def judge(self) -> Judge:
        """The group as NCCL's tuner sees it."""
        cluster, topology = self.topology.cluster, self.topology
        cards = max(1, min(topology.nics_per_node * self.domain_nodes, self.group.num_channels))
        channels = self.num_channels(constants.MAX_CHANNELS)
        usual = constants.NVLINK_CHANNELS if self.num_domains == 1 else min(cards, constants.MAX_CHANNELS)
        return Judge(
            num_ranks=self.num_ranks, num_nodes=self.num_domains, near=self.near, num_cards=cards,
            card_rate=topology.nic_bytes_per_s / 1e9, compute_capability=cluster.gpu.compute_capability,
            net_latency_ns=cluster.nic.latency_ns,
            near_rate=1 / self.near_ns_per_byte if self.near_ns_per_byte else 1.0, cpu=cluster.host.cpu,
            channel_share=min(1.0, channels / usual),
        )  # fmt: skip

    @property
    def is_in_nvlink(self) -> bool:
        """Whether all of it is inside one NVLink domain."""
        return self.num_domains == 1 and self.near == "nvlink"

    @property
    def domain_nodes(self) -> int:
        """Nodes of one NVLink domain."""
        return self.topology.cluster.intra_node.num_domain_nodes

    def num_channels(self, usual: int) -> int:
        """Channels that NCCL runs, within what the environment allows."""
        return max(self.environment.min_channels, min(usual, self.environment.max_channels))

    def usual_channels(self) -> int:
        """Of rings and trees: between nodes two for each card in use, as NCCL's search doubles what it finds."""
        cards = min(self.topology.nics_per_node, self.group.num_channels)
        usual = constants.MAX_CHANNELS if self.num_domains == 1 else 2 * max(1, cards)
        return min(usual, self.environment.max_channels)  # more than usual, forced, do not fill a longer pipeline

    def has_nvls(self, dtype: str) -> bool:
        """Whether the switches of all domains can reduce this type."""
        intra = self.topology.cluster.intra_node
        is_possible = intra.nvls and self.environment.nvls and self.architecture.nvls_efficiency > 0
        return is_possible and dtype in NVLS_DTYPES and min(len(members) for members in self.group.domains) > 2

    def nvls_rate(self) -> float:
        """Share of the NVLink rate at which they do."""
        channels = self.num_channels(constants.NVLS_CHANNELS)
        return self.architecture.nvls_efficiency * min(1.0, channels / constants.NVLS_CHANNELS)

    def nvls_concurrency(self) -> int:
        """Chunks that one GPU has in flight at once: channels x heads."""
        channels = min(constants.NVLS_CHANNELS, self.environment.max_channels)
        return channels * min(self.largest_domain, constants.NVLS_MAX_HEADS)

    def is_ordered(self) -> bool:
        """Whether LL and LL128 may be used: not where the transport may reorder the writes of one message."""
        return self.num_domains == 1 or self.topology.cluster.nic.ordered_writes

    def protocols(self) -> list[Protocol]:
        """What rings and trees may use."""
        usable = constants.PROTOCOLS if self.is_ordered() else ("Simple",)
        return [p for p in usable if self.near == "nvlink" or constants.PCIE_EFFICIENCY[p] > 0]

    def near_step_ns(self, algorithm: Algorithm, protocol: Protocol) -> int:
        """A step inside a domain: the constant, for links that take longer than the usual ones so much more."""
        step_ns = constants.STEP_NS[algorithm, self.near, protocol]
        if algorithm == "ring" and self.is_in_nvlink:
            step_ns = self.architecture.ring_step_ns[protocol]
        return max(step_ns // 4, step_ns + self.near_wire_ns)

    def ring_latency_ns(self, protocol: Protocol, num_steps: int, num_far: int, has_last_receive: bool) -> int:
        """base + steps x step; inside one NVLink domain with the generation's constants, else with the tuner's."""
        base_ns = constants.BASE_NS["ring", protocol]
        if self.num_domains == 1:
            if self.near == "nvlink":
                base_ns = constants.ONE_NODE_BASE_NS[protocol]
            has_copy = has_last_receive and (protocol == "Simple" or self.near == "nvlink")
            return base_ns + (num_steps + has_copy) * self.near_step_ns("ring", protocol)
        cpu = "amd" if self.topology.cluster.host.cpu == "amd" else "intel"
        overhead_ns = constants.NET_OVERHEAD_NS[cpu]
        if protocol == "Simple":
            overhead_ns *= constants.NET_OVERHEAD_SIMPLE_FACTOR
        near_ns = max(self.near_step_ns("ring", protocol), overhead_ns)
        far_ns = constants.STEP_NS["ring", "net", protocol] + self.wire_ns
        return base_ns + round((num_steps - num_far) * near_ns + num_far * far_ns)

    def _find_wire_ns(self) -> int:
        """Latency of the links between the first two domains of the group; 0 inside one domain."""
        if self.num_domains == 1:
            return 0
        pair = Edges.of([(self.group.domains[0][0], self.group.domains[1][0], 1.0)])
        row = self.topology.route_matrix(pair.sources, pair.destinations)[0]
        return int(self.topology.latency_ns[row[row >= 0]].sum())

    def efficiency(self, algorithm: Algorithm, protocol: Protocol, is_between_domains: bool) -> float:
        """Share of the links' rate that flows inside domains, or between them, reach."""
        if is_between_domains:
            return self.net_efficiency(algorithm, protocol)
        share = 1.0
        if algorithm in ("ring", "tree"):
            share = min(1.0, self.num_channels(constants.MAX_CHANNELS) / constants.NVLINK_CHANNELS)
        if algorithm == "ring" and protocol == "LL" and self.is_in_nvlink:
            return share * self.architecture.cached_ll_efficiency
        if algorithm == "tree" and protocol == "LL128" and self.num_domains == 1:
            share *= constants.TREE_ONE_NODE_LL128_SHARE
        if self.near != "nvlink":
            return constants.PCIE_EFFICIENCY[protocol]
        return share * self.architecture.nvlink_efficiency[protocol]

    def net_efficiency(self, algorithm: Algorithm, protocol: Protocol) -> float:
        """Share of the cards' rate: of the protocol, of the channels (one for each card at least)."""
        rails = self.group.num_channels
        share = min(1.0, self.num_channels(constants.MAX_CHANNELS) / min(rails, constants.MAX_CHANNELS))
        if protocol == "LL128" and self.largest_domain == 1:
            return share * constants.NET_LL128_ONE_GPU_EFFICIENCY
        if protocol == "LL" and algorithm in ("ring", "tree"):
            cluster = self.topology.cluster
            most = constants.ll_bytes_per_s(cluster.gpu.compute_capability, cluster.host.cpu, self.num_domains)
            return share * min(constants.NET_EFFICIENCY["LL"], most / (rails * self.topology.nic_bytes_per_s))
        return share * constants.NET_EFFICIENCY[protocol]
