"""CommOperation -> what the fluid network has to carry: a latency, then flows; and which algorithm that was."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from phantora.cluster.placement import Placement
from phantora.cluster.topology import Topology
from phantora.network import constants
from phantora.network.candidates import candidates, direct_candidate, message_candidate
from phantora.network.constants import Algorithm, Protocol
from phantora.network.environment import NcclEnvironment
from phantora.network.group_facts import NVLS_DTYPES
from phantora.network.operation import CommOperation
from phantora.network.schedules import Group, split_edges
from phantora.network.transfers import Transfer
from phantora.network.tuner import Option, choose

MAX_REMEMBERED_GROUPS = 4096
IN_PLACE_KINDS = frozenset(("all_reduce", "broadcast", "reduce", "barrier"))  # torch gives NCCL one buffer for both


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledOperation:
    """`latency_ns` passes, then all `transfers` start together; the operation ends when the last one does."""

    latency_ns: int
    transfers: tuple[Transfer, ...]
    algorithm: Algorithm
    protocol: Protocol | None

    @property
    def label(self) -> str:
        """'ring/LL128', or the algorithm alone where it has no protocol."""
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm

    def slowed(self, factor: float) -> CompiledOperation:
        """The same beside compute: what moves inside a node, where the GPUs' own copies set the pace, takes `factor`
        times as long; what goes over NICs is slower than such copies anyway."""
        transfers = tuple(t if t.is_between_domains else t.scaled(factor) for t in self.transfers)
        leaves_node = any(transfer.is_between_domains for transfer in self.transfers)
        latency_ns = self.latency_ns if leaves_node else round(self.latency_ns * factor)
        return replace(self, latency_ns=latency_ns, transfers=transfers)


class Compiler:
    """Compiles operations on one topology; what depends only on kind and group is remembered."""

    def __init__(
        self, topology: Topology, placement: Placement, environment: NcclEnvironment | None = None
    ) -> None:
        self.topology = topology
        self.placement = placement
        self.environment = environment or NcclEnvironment.read({})
        self._known: OrderedDict[tuple, list[Option]] = OrderedDict()

    def compile(self, operation: CommOperation) -> CompiledOperation:
        """Latency and flows of `operation` with the algorithm and protocol that NCCL chooses."""
        distinct = dict.fromkeys(operation.ranks)
        if len(distinct) == 1:
            return self._on_one_rank(operation)
        if operation.split_bytes is not None:
            return self._all_to_all_of_unequal_parts(operation, operation.split_bytes)
        num_bytes = 0 if operation.kind == "barrier" else operation.bytes
        return _compiled(choose(self._options(operation), num_bytes), num_bytes)

    def _options(self, operation: CommOperation) -> list[Option]:
        key = (operation.kind, operation.ranks, operation.root, operation.dtype in NVLS_DTYPES)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._make_options(operation)
            if len(self._known) > MAX_REMEMBERED_GROUPS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return found

    def _make_options(self, operation: CommOperation) -> list[Option]:
        if operation.kind == "send_recv":
            path = tuple(self.placement.gpu(rank) for rank in operation.ranks)
            found = [message_candidate(self.topology, path, self.environment)]
        else:
            group = self._group(operation)
            root = group.gpus[operation.root]
            found = candidates(self.topology, operation.kind, group, root, operation.dtype, self.environment)
        return self.environment.allowed(operation.kind, found, len(operation.ranks))

    def _group(self, operation: CommOperation) -> Group:
        return Group.of(self.topology, tuple(self.placement.gpu(rank) for rank in operation.ranks))

    def _all_to_all_of_unequal_parts(
        self, operation: CommOperation, split_bytes: tuple[tuple[int, ...], ...]
    ) -> CompiledOperation:
        """Pairs move in proportion to their bytes, so that alone it takes as long as its busiest link."""
        group = self._group(operation)
        candidate = direct_candidate(self.topology, group, split_edges(group, split_bytes), self.environment)
        largest = max((max(row) for row in split_bytes), default=0)
        is_small = largest <= constants.P2P_LL_MAX_BYTES and "LL" in candidate.latency_ns
        return _compiled((candidate, "LL" if is_small else "Simple"), 1)

    def _on_one_rank(self, operation: CommOperation) -> CompiledOperation:
        """A copy on the device, except where torch works in place: NCCL (ncclLaunchOneRank, src/device/onerank.cu)
        compares the two addresses and then copies nothing. (For the mean it still passes over the buffer; here not.)"""
        rate = self.placement.cluster.gpu.memory_bytes_per_s * constants.SINGLE_RANK_COPY_SHARE
        copied_bytes = 0 if operation.kind in IN_PLACE_KINDS else operation.bytes
        copy_ns = round(copied_bytes / rate * 1e9)
        return CompiledOperation(
            latency_ns=constants.SINGLE_RANK_BASE_NS + copy_ns, transfers=(), algorithm="copy", protocol=None
        )


def _compiled(option: Option, num_bytes: int) -> CompiledOperation:
    """The chosen candidate for an operation of `num_bytes`."""
    candidate, protocol = option
    latency_ns, factor = candidate.parts(protocol, num_bytes)
    flows = candidate.transfers[protocol] if num_bytes else ()
    return CompiledOperation(
        latency_ns=latency_ns,
        transfers=tuple(flow.scaled(num_bytes * factor) for flow in flows),
        algorithm=candidate.algorithm,
        protocol=protocol,
    )
