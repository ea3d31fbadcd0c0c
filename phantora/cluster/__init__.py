"""What is simulated: GPUs, hosts, links. TOML files (presets/ or the user's) read into frozen dataclasses."""

from phantora.cluster.loader import list_clusters, load_cluster
from phantora.cluster.placement import Placement, check_world
from phantora.cluster.spec import (
    Cluster, FabricSpec, FaultSpec, GpuSpec, HostSpec, IntraNodeSpec, JitterSpec, NicSpec, PlacementSpec, StragglerSpec,
)  # fmt: skip

__all__ = [
    "Cluster",
    "FabricSpec",
    "FaultSpec",
    "GpuSpec",
    "HostSpec",
    "IntraNodeSpec",
    "JitterSpec",
    "NicSpec",
    "Placement",
    "PlacementSpec",
    "StragglerSpec",
    "check_world",
    "list_clusters",
    "load_cluster",
]
