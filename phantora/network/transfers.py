"""Edges of a collective (GPU to GPU, with a share of its bytes) -> loads on links.

Edges of one tier (inside an NVLink domain, or between domains) become one Transfer: they keep step, as the channels of
a ring do, so they share one rate. The two tiers of a collective are two Transfers, because on each the collective
competes with others by the flows that it has there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phantora.cluster.all_pairs import all_pairs_load
from phantora.cluster.topology import Topology

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
CHUNK_EDGES = 1 << 18  # edges routed at a time: 16 MiB of link indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Messages between GPUs: shares[i] of the operation's bytes goes from sources[i] to destinations[i]."""

    sources: Indices
    destinations: Indices
    shares: Floats

    @classmethod
    def of(cls, pairs: list[tuple[int, int, float]]) -> Edges:
        """Edges from (source GPU, destination GPU, share) triples."""
        columns = list(zip(*pairs)) if pairs else [(), (), ()]
        return cls(
            sources=np.array(columns[0], dtype=np.int64),
            destinations=np.array(columns[1], dtype=np.int64),
            shares=np.array(columns[2], dtype=np.float64),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Equal flows that move together: each moves `bytes`; usages[i] of them cross links[i]."""

    links: Indices
    usages: Floats
    bytes: float
    is_between_domains: bool

    def scaled(self, factor: float) -> Transfer:
        """The same flows with `factor` times the bytes."""
        return Transfer(
            links=self.links, usages=self.usages, bytes=self.bytes * factor, is_between_domains=self.is_between_domains
        )


def make_transfers(topology: Topology, edges: Edges) -> tuple[Transfer, ...]:
    """The transfers of `edges` for an operation of one byte: at most one inside domains and one between them."""
    inside = edges.sources // topology.gpus_per_domain == edges.destinations // topology.gpus_per_domain
    moving = (edges.sources != edges.destinations) & (edges.shares > 0)
    found = [
        _make_transfer(topology, edges, np.flatnonzero(tier & moving), is_between)
        for tier, is_between in ((inside, False), (~inside, True))
    ]
    return tuple(transfer for transfer in found if transfer is not None)


def all_pairs_transfers(topology: Topology, gpus: Indices) -> tuple[Transfer, ...]:
    """The transfers of every GPU's messages to every other one, each 1/n of a byte."""
    found = zip(all_pairs_load(topology, gpus), (False, True))
    return tuple(
        Transfer(links=links, usages=load[links], bytes=1 / len(gpus), is_between_domains=is_between)
        for load, is_between in found if len(links := np.flatnonzero(load))
    )  # fmt: skip


def _make_transfer(topology: Topology, edges: Edges, chosen: Indices, is_between: bool) -> Transfer | None:
    if not len(chosen):
        return None
    unit = float(edges.shares[chosen].max())
    load = np.zeros(topology.num_links)
    for begin in range(0, len(chosen), CHUNK_EDGES):
        part = chosen[begin : begin + CHUNK_EDGES]
        matrix = topology.route_matrix(edges.sources[part], edges.destinations[part])
        weights = np.repeat((edges.shares[part] / unit)[:, None], matrix.shape[1], axis=1)
        used = matrix >= 0
        load += np.bincount(matrix[used], weights=weights[used], minlength=topology.num_links)
    links = np.flatnonzero(load)
    return Transfer(links=links, usages=load[links], bytes=unit, is_between_domains=is_between)


def drain_ns(topology: Topology, transfers: tuple[Transfer, ...]) -> float:
    """Time of the busiest link when nothing else is in the network: bytes / rate, in ns."""
    load = np.zeros(topology.num_links)
    for transfer in transfers:
        load[transfer.links] += transfer.usages * transfer.bytes
    return float((load / topology.bytes_per_s).max()) * 1e9 if len(load) else 0.0
