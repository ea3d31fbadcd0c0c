"""The nodes of a rank in an order that dependencies allow: parents first, otherwise ascending ids (ASTRA-sim's
priority).

Data dependencies are what happened; control dependencies (the call stack in traces of PyTorch) are kept unless they
contradict them: of a cycle, the control edges are left out. A cycle of data dependencies alone is an error.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from pathlib import Path

from phantora.errors import UserError
from phantora.importers.chakra_file import ChakraNode
from phantora.importers.report import ImportReport

Ordered = list[tuple[ChakraNode, tuple[int, ...]]]


def ordered(nodes: Mapping[int, ChakraNode], path: Path, report: ImportReport) -> Ordered:
    """(node, ids of its parents) of each. UserError for a cycle of data dependencies, naming its nodes."""
    ids = sorted(nodes)
    known = _in_order(nodes, ids)
    if known is not None:
        return known
    data, ctrl = _edges(nodes, ids, path, report)
    parents = {i: tuple(dict.fromkeys((*data[i], *ctrl[i]))) for i in ids}
    order = _topological(ids, parents)
    if len(order) < len(ids):
        component = _components(ids, parents)
        num_dropped = 0
        for i in ids:
            kept = tuple(p for p in parents[i] if component[p] != component[i] or p in data[i])
            num_dropped += len(parents[i]) - len(kept)
            parents[i] = kept
        report.leave_out("control dependencies that contradict data dependencies", str(path), num_dropped)
        order = _topological(ids, parents)
    if len(order) < len(ids):
        raise UserError(f"{path}: data dependencies form a cycle: {_cycle(set(ids).difference(order), data)}")
    return [(nodes[i], parents[i]) for i in order]


def _in_order(nodes: Mapping[int, ChakraNode], ids: list[int]) -> Ordered | None:
    """The usual case, quickly: all parents are there and have smaller ids."""
    found = []
    for i in ids:
        node = nodes[i]
        parents = node.data_deps
        if node.ctrl_deps:
            parents = (*parents, *node.ctrl_deps)
        if len(parents) > 1:
            parents = tuple(dict.fromkeys(parents))
        for parent in parents:
            if parent >= i or parent not in nodes:
                return None
        found.append((node, parents))
    return found


def _edges(
    nodes: Mapping[int, ChakraNode], ids: list[int], path: Path, report: ImportReport
) -> tuple[dict[int, dict[int, None]], dict[int, dict[int, None]]]:
    """Data and control parents of each node that are there."""
    data: dict[int, dict[int, None]] = {}
    ctrl: dict[int, dict[int, None]] = {}
    for i in ids:
        node = nodes[i]
        for name, found, deps in (("data", data, node.data_deps), ("control", ctrl, node.ctrl_deps)):
            there = dict.fromkeys(parent for parent in deps if parent in nodes)
            absent = [parent for parent in deps if parent not in nodes]
            if absent:
                report.leave_out(
                    f"{name} dependencies on absent nodes", f"{path}: node {i} on {absent[0]}", len(absent)
                )
            if name == "control" and there.pop(i, 0) is None:
                report.leave_out("control dependencies of nodes on themselves", f"{path}: node {i}")
            found[i] = there
    return data, ctrl


def _topological(ids: list[int], parents: Mapping[int, tuple[int, ...]]) -> list[int]:
    children: dict[int, list[int]] = {}
    num_left = {}
    for i in ids:
        num_left[i] = len(parents[i])
        for parent in parents[i]:
            children.setdefault(parent, []).append(i)
    ready = [i for i in ids if not num_left[i]]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for child in children.get(i, ()):
            num_left[child] -= 1
            if not num_left[child]:
                heapq.heappush(ready, child)
    return order


def _components(ids: list[int], parents: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """Strongly connected components (Tarjan, SIAM J. Comput. 1972), without recursion: node -> number of its
    component."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    component: dict[int, int] = {}
    stack: list[int] = []
    for root in ids:
        if root in index:
            continue
        work = [(root, 0)]
        while work:
            i, position = work.pop()
            if position == 0:
                index[i] = low[i] = len(index)
                stack.append(i)
            elif (child := parents[i][position - 1]) not in component:
                low[i] = min(low[i], low[child])
            if position < len(parents[i]):
                work.append((i, position + 1))
                child = parents[i][position]
                if child not in index:
                    work.append((child, 0))
                continue
            if low[i] == index[i]:
                while True:
                    member = stack.pop()
                    component[member] = i
                    if member == i:
                        break
    return component


def _cycle(left: set[int], data: Mapping[int, Mapping[int, None]]) -> str:
    """A cycle among the nodes that are left: each has a parent among them."""
    seen: dict[int, int] = {}
    i = min(left)
    while i not in seen:
        seen[i] = len(seen)
        i = min(parent for parent in data[i] if parent in left)
    names = [f"node {other}" for other in list(seen)[seen[i] :]]
    return " waits for ".join([*names[:8], *(["..."] if len(names) > 8 else []), f"node {i}"])
