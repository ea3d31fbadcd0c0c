"""Where the ranks of a run sit: rank -> (node, GPU), filled node by node as torchrun does."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.cluster.spec import Cluster
from phantora.errors import UserError


@dataclass(frozen=True, slots=True)
class Placement:
    """`nproc_per_node` ranks on each of the first `num_nodes` nodes; local rank i is GPU i of its node."""

    cluster: Cluster
    num_nodes: int
    nproc_per_node: int

    def __post_init__(self) -> None:
        check_world(self.cluster, self.num_nodes, self.nproc_per_node)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.num_nodes * self.nproc_per_node

    def locate(self, rank: int) -> tuple[int, int]:
        """(node, local GPU) of a global rank."""
        assert 0 <= rank < self.world_size, f"rank {rank} of {self.world_size}"
        return divmod(rank, self.nproc_per_node)

    def gpu(self, rank: int) -> int:
        """Index of the rank's GPU among all GPUs of the cluster: node * gpus_per_node + local GPU."""
        node, local = self.locate(rank)
        return node * self.cluster.gpus_per_node + local


def check_world(cluster: Cluster, num_nodes: int, nproc_per_node: int) -> None:
    """UserError, saying by how much, unless the world fits the cluster."""
    for flag, value in (("--nnodes", num_nodes), ("--nproc-per-node", nproc_per_node)):
        if value < 1:
            raise UserError(f"{flag} {value}: must be at least 1")
    extra = nproc_per_node - cluster.gpus_per_node
    if extra > 0:
        count = _count(cluster.gpus_per_node, "GPU")
        raise UserError(f"--nproc-per-node {nproc_per_node}: {cluster.name} has {count} a node ({extra} too many)")
    extra = num_nodes - cluster.num_nodes
    if extra > 0:
        raise UserError(
            f"--nnodes {num_nodes}: {cluster.name} has {_count(cluster.num_nodes, 'node')} ({extra} too many; "
            f"a cluster file with base = \"{cluster.name}\" may set num_nodes)"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
