"""The network as the engine sees it: operations begin, drain over shared links, end."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping

from phantora.cluster.placement import Placement
from phantora.cluster.spec import Cluster
from phantora.cluster.topology import Topology
from phantora.network.collectives import CompiledOperation, Compiler
from phantora.network.environment import NcclEnvironment
from phantora.network.faults import link_changes
from phantora.network.fluid import FluidNetwork
from phantora.network.operation import CommOperation


class _InFlight:
    """An operation that has begun: what it is, its place in the order of begin(), how many flows it waits for."""

    __slots__ = ("key", "number", "compiled", "num_flows_left")

    def __init__(self, key: int, number: int, compiled: CompiledOperation) -> None:
        self.key = key
        self.number = number
        self.compiled = compiled
        self.num_flows_left = len(compiled.transfers)


class NetworkSimulator:
    """Implements phantora.network.operation.Network.

    An operation is first a latency, then flows. next_ns() is the next instant at which either ends, so advance() to it
    may return nothing; call next_ns() again after each begin() and advance().
    """

    def __init__(
        self, cluster: Cluster, placement: Placement, environment: Mapping[str, str] | None = None, *,
        is_strict: bool = False,
    ) -> None:  # fmt: skip
        """environment: variables such as NCCL_ALGO; by default none, so that a result depends on arguments only.
        is_strict: UserError for an operation for which they leave no algorithm."""
        self.topology = Topology(cluster, placement.num_cluster_nodes)
        self._compiler = Compiler(self.topology, placement, NcclEnvironment.read(environment or {}, is_strict))
        self._fluid = FluidNetwork(self.topology.bytes_per_s)
        self._in_flight: dict[int, _InFlight] = {}
        self._latencies: list[tuple[int, int, int]] = []  # heap of (end of the latency, number, key)
        self._key_of_flow: dict[int, int] = {}
        self.now_ns = 0
        self._num_begun = 0
        self._num_flows = 0
        self._all_changes = link_changes(self.topology, cluster.fault)
        self._changes = deque(self._all_changes)  # of link rates, still to come
        self._change_links(0)

    def restart(self) -> None:
        """Back to virtual time 0, with nothing in flight; what was compiled is kept."""
        assert not self._in_flight, "operations are in flight"
        self._fluid = FluidNetwork(self.topology.bytes_per_s)
        self._changes = deque(self._all_changes)
        self.now_ns = 0
        self._change_links(0)

    def begin(self, key: int, operation: CommOperation, now_ns: int, slowdown: float = 1.0) -> None:
        """Start `operation` at `now_ns` under the caller's name `key`. slowdown: inside nodes it needs that many times
        longer than its links alone would let it (contention.py)."""
        assert key not in self._in_flight, f"operation {key} is in flight"
        self.now_ns = now_ns
        self._change_links(now_ns)
        compiled = self._compiler.compile(operation)
        if slowdown != 1.0:
            compiled = compiled.slowed(slowdown)
        self._in_flight[key] = _InFlight(key, self._num_begun, compiled)
        heapq.heappush(self._latencies, (now_ns + compiled.latency_ns, self._num_begun, key))
        self._num_begun += 1

    def next_ns(self) -> int | None:
        """The next instant at which anything changes, None when idle. advance() to it may finish nothing."""
        next_ns = self._fluid.next_ns()
        if self._latencies:
            next_ns = self._latencies[0][0] if next_ns is None else min(self._latencies[0][0], next_ns)
        if self._changes and self._in_flight:
            next_ns = self._changes[0][0] if next_ns is None else min(self._changes[0][0], next_ns)
        return next_ns

    def advance(self, now_ns: int) -> list[int]:
        """Move to `now_ns`, not beyond next_ns(): keys of the operations that are finished, in order of begin()."""
        self.now_ns = now_ns
        finished: list[_InFlight] = []
        for flow in self._fluid.advance(now_ns):
            operation = self._in_flight[self._key_of_flow.pop(flow)]
            operation.num_flows_left -= 1
            if not operation.num_flows_left:
                finished.append(operation)
        while self._latencies and self._latencies[0][0] <= now_ns:
            operation = self._in_flight[heapq.heappop(self._latencies)[2]]
            if operation.compiled.transfers:
                self._begin_flows(operation, now_ns)
            else:
                finished.append(operation)
        self._change_links(now_ns)
        finished.sort(key=lambda operation: operation.number)
        for operation in finished:
            del self._in_flight[operation.key]
        return [operation.key for operation in finished]

    def algorithm(self, key: int) -> str:
        """'ring/LL128' and the like, of an operation that is in flight."""
        return self._in_flight[key].compiled.label

    def link_bytes_per_s(self) -> dict[str, float]:
        """What crosses each busy link now, by the link's name."""
        load = self._fluid.link_bytes_per_s()
        return {self.topology.link(int(index)).name: float(load[index]) for index in load.nonzero()[0]}

    def _change_links(self, now_ns: int) -> None:
        """Links that fail or come back until now. (While nothing is in flight it does not matter when.)"""
        while self._changes and self._changes[0][0] <= now_ns:
            _, link, bytes_per_s = self._changes.popleft()
            self._fluid.set_capacity(link, bytes_per_s, now_ns)

    def _begin_flows(self, operation: _InFlight, now_ns: int) -> None:
        for transfer in operation.compiled.transfers:
            self._fluid.begin(self._num_flows, transfer.links, transfer.usages, transfer.bytes, now_ns)
            self._key_of_flow[self._num_flows] = operation.key
            self._num_flows += 1


def exclusive_ns(
    cluster: Cluster, placement: Placement, operation: CommOperation, environment: Mapping[str, str] | None = None
) -> int:
    """Time of `operation` alone in the network."""
    network = NetworkSimulator(cluster, placement, environment)
    network.begin(0, operation, 0)
    while True:
        now_ns = network.next_ns()
        assert now_ns is not None
        if network.advance(now_ns):
            return now_ns
