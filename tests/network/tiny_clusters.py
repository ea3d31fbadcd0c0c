"""Small clusters with round figures, for times that can be computed by hand."""

from __future__ import annotations

import dataclasses

from phantora.cluster import Cluster, FabricSpec, IntraNodeSpec, NicSpec, Placement, load_cluster


def tiny(num_nodes: int = 1, gpus_per_node: int = 4, kind: str = "nvswitch", nvls: bool = False) -> Cluster:
    """Hopper GPUs, 100 GB/s between GPUs of a node, one card of 10 GB/s per GPU, no latency between nodes."""
    return dataclasses.replace(
        load_cluster("dgx-h100"),
        name="tiny",
        num_nodes=num_nodes,
        gpus_per_node=gpus_per_node,
        intra_node=IntraNodeSpec(kind=kind, bytes_per_s=100e9, nvls=nvls, latency_ns=500),  # type: ignore[arg-type]
        nic=NicSpec(count=gpus_per_node, bytes_per_s=10e9),
        fabric=FabricSpec(kind="rail-optimised", hosts_per_leaf=64),
    )


def whole(cluster: Cluster) -> Placement:
    """One rank on every GPU."""
    return Placement(cluster, cluster.num_nodes, cluster.gpus_per_node)


def without_nvls(cluster: Cluster) -> Cluster:
    """The cluster with NVLink SHARP switched off."""
    return dataclasses.replace(cluster, intra_node=dataclasses.replace(cluster.intra_node, nvls=False))
