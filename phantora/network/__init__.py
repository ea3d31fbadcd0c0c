"""Communication on links: collectives become flows (collectives), flows share links fairly (fair_share, fluid)."""

from phantora.network.operation import CommOperation, Kind, Network
from phantora.network.simulator import NetworkSimulator, exclusive_ns

__all__ = ["CommOperation", "Kind", "Network", "NetworkSimulator", "exclusive_ns"]
