"""Single routes, remembered: what one message from GPU to GPU crosses. (Topology computes many at once.)"""

from __future__ import annotations

import numpy as np

from phantora.cluster.topology import Topology


class Routes:
    """Routes over one topology, computed on first use."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}

    def route(self, source: int, destination: int) -> tuple[int, ...]:
        """Link indices, in order, from GPU `source` to GPU `destination` (indices over the whole cluster)."""
        key = (source, destination)
        if key not in self._known:
            row = self.topology.route_matrix(np.array([source]), np.array([destination]))[0]
            self._known[key] = tuple(int(link) for link in row if link >= 0)
        return self._known[key]

    def latency_ns(self, source: int, destination: int) -> int:
        """Sum of the links' latencies along the route."""
        return sum(int(self.topology.latency_ns[link]) for link in self.route(source, destination))

    def bytes_per_s(self, source: int, destination: int) -> float:
        """Rate of the narrowest link of the route."""
        return min(float(self.topology.bytes_per_s[link]) for link in self.route(source, destination))
