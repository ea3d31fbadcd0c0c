"""What NCCL's tuner expects of each algorithm and protocol.

Formulas and tables: [tuning] of constants.py (ncclTopoTuneModel, ncclTopoGetAlgoTime; src/tuning/*.cc from 2.28 on),
speeds of src/graph/search.cc. Rates are bytes/ns (GB/s). The result of NCCL's search for channels is taken as it comes
out on the usual machines: one node, as many channels as fill the NVLinks; several nodes, one channel for each card. The
search tries few speeds (48, 45, 42, 40, 30 GB/s, ...); here a channel has the rate of its links, but where there are
more GPUs than NVLS has heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.network import constants
from phantora.network.constants import Algorithm, LinkSort, Protocol
from phantora.network.tails import TreeDip

NVLS_SPEEDS = (90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Latency and time of a byte as the tuner sees them."""

    latency_ns: float
    ns_per_byte: float
    tree_dip: TreeDip | None = None
    """Of trees: what they lose at middle sizes."""
    plateau: tuple[float, float] = (float("inf"), 1.0)
    """(bytes, factor): the latency is that many times longer from these bytes on."""

    def ns(self, num_bytes: int) -> float:
        """Expected time of an operation."""
        latency = self.latency_ns * (self.plateau[1] if num_bytes >= self.plateau[0] else 1.0)
        dip = self.tree_dip.ns(num_bytes) if self.tree_dip else 0.0
        return latency + dip + self.ns_per_byte * num_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A communicator as the tuner sees it."""

    num_ranks: int
    num_nodes: int
    """NVLink domains."""
    compute_capability: tuple[int, int]
    near: LinkSort
    near_rate: float
    """Of one GPU to the others of its domain, bytes/ns."""
    num_cards: int
    """Cards of one domain in use."""
    card_rate: float
    """Of one card."""
    net_latency_ns: int
    """What the network plug-in states of itself. (NCCL counts it twice for Simple, for a flush that EFA does without.)"""
    cpu: str
    channel_share: float
    """Of the usual channels that the environment allows."""

    def all_reduce(self, algorithm: Algorithm, protocol: Protocol) -> Judged:
        """An all-reduce."""
        n = self.num_ranks
        latency = self._latency_ns(algorithm, protocol, 2 * (n - 1), 2 * self.num_nodes)
        if algorithm == "ring":
            rate = self._ring_rate(protocol) * n / (2 * (n - 1))
            plateau = (float("inf"), 1.0)
            if protocol == "Simple" and self.num_nodes > 1:
                least = constants.RING_PLATEAU_BYTES * 2 * self.num_cards * n
                plateau = (float(least), constants.RING_PLATEAU_FACTOR)
            return Judged(latency_ns=latency, ns_per_byte=1 / rate, plateau=plateau)
        if algorithm == "tree":
            per_byte = 2 / self._tree_rate(protocol)
            dip = TreeDip(factors=constants.TREE_CORRECTION[protocol], ns_per_byte=per_byte)
            return Judged(latency_ns=latency, ns_per_byte=per_byte, tree_dip=dip)
        return Judged(latency_ns=latency, ns_per_byte=2 * (n - 1) / n / self._nvls_rate(2.0))

    def gather(self, algorithm: Algorithm, protocol: Protocol) -> Judged:
        """An all-gather or reduce-scatter by ring or NVLS."""
        n = self.num_ranks
        latency = self._latency_ns(algorithm, protocol, n - 1, self.num_nodes - 1)
        rate = self._ring_rate(protocol) if algorithm == "ring" else self._nvls_rate((n - 1) / n)
        return Judged(latency_ns=latency, ns_per_byte=(n - 1) / n / rate)

    def chain(self, protocol: Protocol) -> Judged:
        """A broadcast or reduce. (With the same channels on all nodes it counts as one step.)"""
        hardware: LinkSort = self.near if self.num_nodes == 1 else "net"
        step = constants.STEP_NS["ring", hardware, protocol]
        latency = constants.BASE_NS["ring", protocol] + step - (self._spare_ns if self.num_nodes == 1 else 0)
        return Judged(latency_ns=latency, ns_per_byte=1 / self._ring_rate(protocol))

    @property
    def _spare_ns(self) -> int:
        """What the tuner states for any kernel on one node beyond what one takes (constants.ONE_NODE_BASE_NS)."""
        return constants.BASE_NS["ring", "LL"] - constants.ONE_NODE_BASE_NS["LL"]

    @property
    def _scale(self) -> int:
        """Column of the tuner's tables: one node, two, more."""
        return min(self.num_nodes, 3) - 1

    @property
    def _channels(self) -> int:
        return constants.NVLINK_CHANNELS if self.num_nodes == 1 else self.num_cards

    @property
    def _local(self) -> int:
        """Members of a domain."""
        return max(1, self.num_ranks // self.num_nodes)

    def _bus_rate(self, is_tree: bool = False) -> float:
        """Channels x speed of the graph. Of two nodes' trees each card carries half: the search doubles their speed."""
        if self.num_nodes == 1:
            return self.near_rate * self.channel_share
        rate = self.num_cards * self.card_rate * (2 if is_tree and self.num_nodes == 2 else 1)
        if self._local > 1:
            rate = min(rate, self.near_rate * self._local / (self._local - 1))
        return rate * self.channel_share

    def _ring_rate(self, protocol: Protocol) -> float:
        constants_of = constants.architecture(self.compute_capability)
        rate = self._bus_rate()
        if protocol == "LL":
            return min(self._ll_most(), rate * (constants_of.ll_judged_share if self.num_nodes == 1 else 0.5))
        if protocol == "LL128":
            share = constants.NET_LL128_ONE_GPU_EFFICIENCY if self._has_one_gpu else constants.NET_EFFICIENCY["LL128"]
            return min(rate * share, self._channels * constants_of.channel_ring_ll128[self._scale])
        return rate

    def _tree_rate(self, protocol: Protocol) -> float:
        of = constants.architecture(self.compute_capability)
        rate = min(self._bus_rate(True) * constants.TREE_EFFICIENCY, self._channels * of.channel_tree[self._scale])
        if protocol == "LL":
            rate = min(rate / constants.TREE_LL_DIVISOR, self._ll_most())
        elif protocol == "LL128":
            share = constants.TREE_ONE_NODE_LL128_SHARE if self.num_nodes == 1 else 120 / 128
            rate = min(rate * share, self._channels * of.channel_tree_ll128[self._scale])
        is_simple_pattern = self.compute_capability >= (9, 0) and self.num_nodes > 1
        return rate * (constants.TREE_PATTERN_SHARE if is_simple_pattern else 1.0)

    def _nvls_rate(self, passes: float) -> float:
        """passes: of both halves of an all-reduce at once 2, of an all-gather (n - 1) / n."""
        of = constants.architecture(self.compute_capability)
        heads = min(max(2, self._local), constants.NVLS_MAX_HEADS)
        speed = self.near_rate / (heads + 1)
        if self._local > heads:
            speed = next((tried for tried in NVLS_SPEEDS if tried <= speed), speed)
        most = speed * of.nvls_judged * (heads - 1) / heads * passes
        if self.num_nodes > 1:
            between = self.card_rate * self.num_cards / heads * (2 if self.num_nodes == 2 else 1)
            most = min(most, between, of.channel_nvls_tree[self._scale])
        return most * heads * self.channel_share

    @property
    def _has_one_gpu(self) -> bool:
        return self.num_nodes > 1 and self.num_ranks < 2 * self.num_nodes

    def _ll_most(self) -> float:
        return constants.ll_bytes_per_s(self.compute_capability, self.cpu, self.num_nodes) / 1e9

    def _latency_ns(self, algorithm: Algorithm, protocol: Protocol, num_steps: int, num_far: int) -> float:
        step = constants.STEP_NS
        if algorithm in ("nvls", "nvls_tree"):
            near = step["nvls", "nvlink", "Simple"] - (self._spare_ns if self.num_nodes == 1 else 0)
            far = step["nvls_tree", "net", "Simple"] + self.net_latency_ns
            return near + (2 * (self.num_nodes.bit_length() - 1) * far if self.num_nodes > 1 else 0)
        near = step[algorithm, self.near, protocol]
        far = step[algorithm, "net", protocol] + self.net_latency_ns
        base = constants.BASE_NS[algorithm, protocol]
        if self.num_nodes == 1:
            base -= self._spare_ns
        if algorithm == "tree":
            return base + 2 * ((self._local - 1) * near + (self.num_nodes.bit_length() - 1) * far)
        if self.num_nodes == 1:
            return base + num_steps * near
        overhead = constants.NET_OVERHEAD_NS["amd" if self.cpu == "amd" else "intel"]
        near = max(near, overhead * (constants.NET_OVERHEAD_SIMPLE_FACTOR if protocol == "Simple" else 1))
        num_far = min(num_far, num_steps)
        return base + (num_steps - num_far) * near + num_far * far
