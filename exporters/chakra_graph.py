"""The work of one rank as a graph that ASTRA-sim can run: what waits for what, in an order that cannot deadlock.

ASTRA-sim knows neither streams nor a host: per NPU one kernel and one communication at a time, each as soon as its
parents are done (in ascending id). Three things keep its time right nevertheless:

* Order of communication. Two ranks that start two independent collectives in different order would wait for each other
  for ever, so the communications of a rank form a chain, in the order in which their last members arrived: one order
  for the whole run. (The parts of one coalesced kernel do not wait for each other.)
* Gaps. Work that started later than everything it waited for was held back by the host. While the device is idle, a
  'host gap' node of that length stands in the line of kernels; otherwise an edge from the kernel that ended last.
* Waiting hosts. Work issued after the host waited for some work depends on that work.

Work of the CPU in traces of other tools has no node: what waited for it was held back by the host, so there is a gap.

Edges that exist only for these reasons are kept apart (`order_deps`), so that an importer can leave them out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from phantora.trace.columns import as_int64, device_rows
from phantora.trace.model import NO_STREAM, CollectiveInfo, RankTrace, Run

NodeKind = Literal["kernel", "gap", "collective", "send", "recv"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node. row: row of the trace (-1: host gap); collective: index in Run.collectives (-1: none).

    peer: the other rank of a send or recv. duration_ns: its time on the stream; of the parts of a coalesced kernel only
    the first has one. data_deps, order_deps: ids of smaller value than `id`.
    """

    id: int
    kind: NodeKind
    row: int
    collective: int
    peer: int
    start_ns: int
    duration_ns: int
    data_deps: tuple[int, ...]
    order_deps: tuple[int, ...]


def graph_nodes(run: Run, trace: RankTrace) -> Iterator[GraphNode]:
    """The nodes of a rank in ascending id from 1, parents first."""
    return _Graph(run, trace).nodes()


def parts_of(rank: int, collective: CollectiveInfo) -> list[tuple[NodeKind, int]]:
    """(kind, peer) of the nodes by which `rank` takes part; one 'kernel' when nothing leaves the rank.

    Gather and scatter, which ASTRA-sim lacks, are messages to and from the root.
    """
    ranks = collective.ranks
    if len(ranks) < 2 or (collective.kind == "send_recv" and ranks[0] == ranks[1]):
        return [("kernel", -1)]
    if collective.kind == "send_recv":
        return [("send", ranks[1])] if rank == ranks[0] else [("recv", ranks[0])]
    if collective.kind not in ("gather", "scatter"):
        return [("collective", -1)]
    root = ranks[collective.root]
    to_root = collective.kind == "gather"
    if rank != root:
        return [("send" if to_root else "recv", root)]
    return [("recv" if to_root else "send", peer) for peer in ranks if peer != root]


def _global_order(entry: tuple[int, int, int, int]) -> tuple[int, ...]:
    """Equal times: by number of the collective, the same on all ranks; what takes no time: by row, parents first."""
    start, end, row, collective = entry
    return (start, end, collective, row) if start < end else (start, end, row, collective)


@dataclass(slots=True)
class _Frontier:
    """The line of kernels (and gaps) of a rank: the node that ended last, now and at earlier times."""

    ends_ns: list[int] = field(default_factory=lambda: [0])
    nodes: list[int] = field(default_factory=lambda: [0])  # 0: before the first

    def add(self, node: int, end_ns: int) -> None:
        if end_ns >= self.ends_ns[-1]:
            self.ends_ns.append(end_ns)
            self.nodes.append(node)

    def last_before(self, time_ns: int) -> int:
        return self.nodes[bisect_right(self.ends_ns, time_ns) - 1]


class _Graph:
    def __init__(self, run: Run, trace: RankTrace) -> None:
        self.run, self.trace = run, trace
        self.signature, self.stream = trace.signature, trace.stream
        self.start, self.end, self.issue = trace.start_ns, trace.end_ns, trace.issue_ns
        self.rows = device_rows(trace)
        self.parents = self._row_parents()
        self.ids: dict[int, tuple[int, ...]] = {}  # row -> its nodes
        self.frontier = _Frontier()
        self.chain: tuple[int, list[int], list[int]] = (-1, [], [])  # row of the last communication, its nodes, parents
        self.num_nodes = 0
        self.wait_ends, self.waited_rows = self._host_waits()

    def nodes(self) -> Iterator[GraphNode]:
        """See graph_nodes."""
        for row, collective in self._ordered():
            order_deps: list[int] = []
            yield from self._hold_back(row, order_deps)
            if collective < 0:
                yield self._kernel(row, order_deps)
            else:
                for kind, peer in parts_of(self.trace.rank, self.run.collectives[collective]):
                    if kind == "kernel":
                        yield self._kernel(row, order_deps, collective)
                    else:
                        yield self._communication(row, collective, kind, peer, order_deps)
        yield from self._tail()

    # what there is, and in which order

    def _row_parents(self) -> dict[int, list[int]]:
        """Row -> rows it waited for: the one before it on its stream, and those behind events."""
        parents: dict[int, list[int]] = {}
        last: dict[tuple[int, int], int] = {}
        for row in self.rows.tolist():
            key = (self.trace.device[row], self.stream[row])
            parents[row] = [last[key]] if key in last else []
            if key[1] != NO_STREAM:
                last[key] = row
        for row, dependency in zip(self.trace.dependent, self.trace.dependency):
            if row in parents and dependency in parents and dependency not in parents[row]:
                parents[row].append(dependency)
        return parents

    def _ordered(self) -> list[tuple[int, int]]:
        """(row, collective or -1) by the time at which it really began: a collective when its last member had come."""
        entries = []
        for row in self.rows.tolist():
            number = self.signature[row]
            if number >= 0:
                entries.append((self.start[row], self.end[row], row, -1))
                continue
            for collective in self.trace.work_collectives[-1 - number]:
                info = self.run.collectives[collective]
                if parts_of(self.trace.rank, info)[0][0] == "kernel":
                    entries.append((self.start[row], self.end[row], row, collective))
                else:
                    entries.append((info.start_ns, info.end_ns, row, collective))
        entries.sort(key=_global_order)
        return [(row, collective) for _, _, row, collective in entries]

    def _host_waits(self) -> tuple[list[int], list[int]]:
        """When the host's waits for its device ended, and the row that each had waited for (-1: not known)."""
        ends = as_int64(self.trace.end_ns)[self.rows]
        order = np.argsort(ends, kind="stable")
        wait_ends = as_int64(self.trace.wait_end_ns)
        blocked = wait_ends > as_int64(self.trace.wait_begin_ns)
        if len(self.trace.wait_rows) == len(wait_ends):
            blocked &= np.array([bool(rows) for rows in self.trace.wait_rows], bool)
        wait_ends = np.sort(wait_ends[blocked])
        if not len(order) or not len(wait_ends):
            return [], []
        found = order[np.searchsorted(ends[order], wait_ends, side="right") - 1]
        matches = ends[found] == wait_ends
        return wait_ends.tolist(), np.where(matches, self.rows[found], -1).tolist()

    # host

    def _hold_back(self, row: int, order_deps: list[int]) -> Iterator[GraphNode]:
        """If the host held `row` back: a gap, or what else stands for that in `order_deps`."""
        ready = max((self.end[parent] for parent in self.parents[row]), default=0)
        start = self.start[row]
        if start <= ready:
            return
        waited = self._host_waited_for(row)
        if waited >= 0 and ready < self.end[waited] <= start and waited in self.ids:
            order_deps += self.ids[waited]
            ready = self.end[waited]
        since = max(self.frontier.ends_ns[-1], ready)
        if start > since:
            yield self._gap(start, start - since, self._parent_ids(row) + order_deps)
            order_deps[:] = [self.num_nodes]
        else:
            last = self.frontier.last_before(start)
            if last:
                order_deps.append(last)

    def _host_waited_for(self, row: int) -> int:
        index = bisect_right(self.wait_ends, self.issue[row]) - 1
        return self.waited_rows[index] if index >= 0 else -1

    def _gap(self, end_ns: int, length_ns: int, parents: list[int]) -> GraphNode:
        before = [self.frontier.nodes[-1]] if self.frontier.nodes[-1] else []
        self.num_nodes += 1
        deps = tuple(sorted({*parents, *before}))
        self.frontier.add(self.num_nodes, end_ns)
        return GraphNode(self.num_nodes, "gap", -1, -1, -1, end_ns - length_ns, length_ns, (), deps)

    def _tail(self) -> Iterator[GraphNode]:
        """The host's time after the last work."""
        ends = as_int64(self.trace.end_ns)[self.rows]
        last = int(ends.max()) if len(ends) else 0
        if self.trace.host_end_ns > last:
            parents = [node for row in self._last_rows() for node in self.ids[row]]
            yield self._gap(self.trace.host_end_ns, self.trace.host_end_ns - last, parents)

    def _last_rows(self) -> list[int]:
        last = {(self.trace.device[row], self.stream[row]): row for row in self.rows.tolist()}
        return list(last.values())

    # nodes

    def _parent_ids(self, row: int) -> list[int]:
        return [node for parent in self.parents[row] for node in self.ids[parent]]

    def _node(self, row: int, kind: NodeKind, collective: int, peer: int, order_deps: list[int]) -> GraphNode:
        first = row not in self.ids
        self.num_nodes += 1
        data_deps = tuple(self._parent_ids(row))
        self.ids[row] = (*self.ids.get(row, ()), self.num_nodes)
        order = tuple(sorted(set(order_deps).difference(data_deps))) if order_deps else ()
        duration = self.end[row] - self.start[row] if first else 0
        return GraphNode(self.num_nodes, kind, row, collective, peer, self.start[row], duration, data_deps, order)

    def _kernel(self, row: int, order_deps: list[int], collective: int = -1) -> GraphNode:
        node = self._node(row, "kernel", collective, -1, order_deps)
        self.frontier.add(node.id, self.end[row])
        return node

    def _communication(self, row: int, collective: int, kind: NodeKind, peer: int, order_deps: list[int]) -> GraphNode:
        last_row, nodes, parents = self.chain
        if row != last_row:
            parents, nodes = nodes, []
        node = self._node(row, kind, collective, peer, order_deps + parents)
        self.chain = (row, [*nodes, node.id], parents)
        return node
