"""Where the ranks of a run sit: rank -> (node, GPU), filled node by node as torchrun does."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from phantora.cluster.spec import Cluster
from phantora.errors import UserError


@dataclass(frozen=True, slots=True)
class Placement:
    """`nproc_per_node` ranks on each of `num_nodes` nodes: the first ones, and local rank i on GPU i, unless the
    cluster has a [placement]."""

    cluster: Cluster
    num_nodes: int
    nproc_per_node: int
    _nodes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_world(self.cluster, self.num_nodes, self.nproc_per_node)
        first = self.cluster.placement.nodes
        named = frozenset(first)
        others = (node for node in range(self.cluster.num_nodes) if node not in named)
        object.__setattr__(self, "_nodes", (*first, *islice(others, self.num_nodes))[: self.num_nodes])

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.nproc_per_node

    def locate(self, rank: int) -> tuple[int, int]:
        """(node of the run, local rank) of a global rank."""
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        return divmod(rank, self.nproc_per_node)

    def gpu(self, rank: int) -> int:
        """Index of the rank's GPU among all GPUs of the cluster, node * gpus_per_node + local GPU, as its [placement]
        says."""
        node, local = self.locate(rank)
        gpus = self.cluster.placement.gpus
        return self._nodes[node] * self.cluster.gpus_per_node + (gpus[local] if gpus else local)

    @property
    def num_cluster_nodes(self) -> int:
        """Nodes of the cluster up to the last one that the run uses."""
        return max(self._nodes) + 1


def check_world(
    cluster: Cluster, num_nodes: int, nproc_per_node: int, flags: tuple[str, str] = ("--nnodes", "--nproc-per-node")
) -> None:
    """UserError, saying by how much, unless the world fits the cluster. flags: what the user calls the two numbers."""
    for flag, value in zip(flags, (num_nodes, nproc_per_node)):
        if value < 1:
            raise UserError(f"{flag} {value}: must be at least 1")
    extra = nproc_per_node - cluster.gpus_per_node
    if extra > 0:
        count = _count(cluster.gpus_per_node, "GPU")
        raise UserError(f"{flags[1]} {nproc_per_node}: {cluster.name} has {count} a node ({extra} too many)")
    extra = num_nodes - cluster.num_nodes
    if extra > 0:
        raise UserError(
            f"{flags[0]} {num_nodes}: {cluster.name} has {_count(cluster.num_nodes, 'node')} ({extra} too many; "
            f"a cluster file with base = \"{cluster.name}\" may set num_nodes)"
        )
    placed = len(cluster.placement.gpus)
    if 0 < placed < nproc_per_node:
        raise UserError(f"{flags[1]} {nproc_per_node}: [placement] of {cluster.name} has {_count(placed, 'GPU')}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
