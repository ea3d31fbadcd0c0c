"""What crosses the links and the network card of each GPU over time, from the collectives of a run.

The bytes of a collective on each link follow from its kind, its group and the algorithm that it took
(network/schedules.py); they are spread evenly over the time from the arrival of its last member to its end. So the area
below a curve is exact, and within one collective the curve is flat (a start-up latency or a neighbour's contention
shows as a lower rate). Bytes are those of the messages, without what a protocol adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phantora.cluster.placement import Placement
from phantora.cluster.spec import Cluster
from phantora.cluster.topology import Topology
from phantora.network.schedules import (
    Group, all_pairs_edges, between_domains_tree_edges, closed_rings_inside_domains, join_edges, pat_edges, ring_edges,
    scale_edges, split_edges, star_edges, tree_edges,
)  # fmt: skip
from phantora.network.transfers import Edges, Floats, Indices, make_transfers
from phantora.trace.counters import CounterSeries
from phantora.trace.model import CollectiveInfo, Run


@dataclass(frozen=True, slots=True)
class _Counter:
    rank: int
    name: str
    axis: str
    links: tuple[int, ...]


def link_counters(run: Run, ranks: Sequence[int]) -> list[CounterSeries]:
    """GB/s out of and into the links and the card of each of `ranks`; none where nothing passed, or no cluster is
    known."""
    if not isinstance(run.cluster, Cluster) or not run.collectives:
        return []
    per_node = max(run.nproc_per_node, 1)
    placement = Placement(run.cluster, -(-run.world_size // per_node), per_node)
    topology = Topology(run.cluster, placement.num_cluster_nodes)
    counters = [counter for rank in ranks for counter in _counters_of(topology, rank, placement.gpu(rank))]
    use = _LinkUse(topology, placement, counters)
    for members in _classes(run).values():
        use.add([run.collectives[number] for number in members])
    return use.series()


def edges_of(kind: str, algorithm: str, group: Group, root: int, is_mesh: bool) -> Edges:
    """Who sends whom what share of the bytes of a collective (of network.operation.CommOperation.bytes).

    algorithm: 'ring/LL128' and the like; the ring, or messages from each to each, where it is not known. root: a GPU.
    """
    if kind == "send_recv":
        return Edges.of([(group.gpus[0], group.gpus[1], 1.0)])
    if kind in ("gather", "scatter"):
        return star_edges(group, root, inwards=kind == "gather")
    if kind == "all_to_all":
        return all_pairs_edges(group)
    if kind in ("broadcast", "reduce"):
        return ring_edges(group, is_mesh, root)
    return _symmetric_edges(kind, algorithm.partition("/")[0].strip(), group, is_mesh)


def _symmetric_edges(kind: str, algorithm: str, group: Group, is_mesh: bool) -> Edges:
    """All-reduce, all-gather and reduce-scatter: shares as in network/candidates.py."""
    if algorithm == "tree":
        return tree_edges(group, is_mesh)
    if algorithm == "pat":
        return pat_edges(group)
    if algorithm == "nvls":
        share = 1.0 + 1 / len(group.gpus) if kind == "all_reduce" else 1.0
        return scale_edges(closed_rings_inside_domains(group), share)
    if algorithm == "nvls_tree":
        largest = max(len(members) for members in group.domains)
        inside = scale_edges(closed_rings_inside_domains(group), 1 + 1 / largest)
        return join_edges(inside, between_domains_tree_edges(group))
    rounds, size = 2 if kind == "all_reduce" else 1, len(group.gpus)
    return scale_edges(ring_edges(group, is_mesh), rounds * (size - 1) / size)


def _classes(run: Run) -> dict[tuple[object, ...], list[int]]:
    """Collectives that load the same links in the same proportions."""
    classes: dict[tuple[object, ...], list[int]] = {}
    for number, info in enumerate(run.collectives):
        if info.end_ns > info.start_ns >= 0 and info.bytes > 0 and len(dict.fromkeys(info.ranks)) > 1:
            classes.setdefault((info.kind, info.ranks, info.root, info.algorithm, info.split_bytes), []).append(number)
    return classes


def _counters_of(topology: Topology, rank: int, gpu: int) -> list[_Counter]:
    """The links of a GPU: to the other GPUs of its domain, and its card, which several GPUs may share."""
    counters = []
    kind = topology.cluster.intra_node.kind
    near = "PCIe" if kind == "pcie" else "NVLink"
    for direction in ("out", "in") if kind != "none" else ():
        links = topology.gpu_links(gpu, direction == "out")
        counters.append(_Counter(rank, f"{near} {direction}", near, links))
    for direction in ("out", "in") if topology.nics_per_node else ():
        name = f"NIC {topology.rail(gpu)} {direction}"
        counters.append(_Counter(rank, name, "NIC", (topology.card_link(gpu, direction == "out"),)))
    return counters


class _LinkUse:
    """Adds up what collectives put on the links of the counters, as changes of whole bytes/s."""

    def __init__(self, topology: Topology, placement: Placement, counters: list[_Counter]) -> None:
        self.topology, self.placement, self.counters = topology, placement, counters
        self.is_mesh = topology.cluster.intra_node.kind == "mesh"
        self.changes: list[list[tuple[Indices, Indices]]] = [[] for _ in counters]  # (times, changes of the rate)

    def add(self, infos: list[CollectiveInfo]) -> None:
        """Collectives of one class."""
        load = self._load(infos[0])
        start = np.array([info.start_ns for info in infos], np.int64)
        end = np.array([info.end_ns for info in infos], np.int64)
        size = np.array([info.bytes for info in infos], np.float64)
        times = np.concatenate([start, end])
        for counter, changes in zip(self.counters, self.changes):
            share = sum(float(load[link]) for link in counter.links)
            if share:
                rates = np.rint(share * size / (end - start) * 1e9).astype(np.int64)
                changes.append((times, np.concatenate([rates, -rates])))

    def series(self) -> list[CounterSeries]:
        """Rates over time, in GB/s (1e9); each begins with 0 at time 0."""
        found = []
        for counter, changes in zip(self.counters, self.changes):
            if changes:
                times, values = _summed(changes)
                found.append(
                    CounterSeries(
                        rank=counter.rank,
                        name=counter.name,
                        unit="GB/s",
                        axis=counter.axis,
                        times_ns=times,
                        values=values / 1e9,
                    )
                )
        return found

    def _load(self, info: CollectiveInfo) -> Floats:
        """Bytes on each link for each byte of the collective."""
        gpus = tuple(self.placement.gpu(rank) for rank in info.ranks)
        group = Group.of(self.topology, gpus)
        if info.split_bytes is None:
            edges = edges_of(info.kind, info.algorithm, group, gpus[info.root], self.is_mesh)
        else:
            edges = scale_edges(split_edges(group, info.split_bytes), 1 / info.bytes)
        load = np.zeros(self.topology.num_links)
        for transfer in make_transfers(self.topology, edges):
            load[transfer.links] += transfer.usages * transfer.bytes
        return load


def _summed(changes: list[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    """(times, rates from then on), one entry for each time at which the rate changes."""
    times = np.concatenate([[0], *(times for times, _ in changes)])
    steps = np.concatenate([[0], *(steps for _, steps in changes)])
    distinct, place = np.unique(times, return_inverse=True)
    total = np.zeros(len(distinct), np.int64)
    np.add.at(total, place.reshape(-1), steps)
    rates = np.cumsum(total)
    changed = np.flatnonzero(np.diff(rates, prepend=-1))
    return distinct[changed], rates[changed]
