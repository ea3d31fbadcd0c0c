"""An order of a rank's rows in which everything comes after what it waits for.

A recorded run has it as it is. In traces of other tools a row may wait for one of a greater number.
"""

from __future__ import annotations

import heapq

import numpy as np

from phantora.errors import UserError
from phantora.trace.columns import as_int64
from phantora.trace.model import NO_STREAM, RankTrace


def issue_order(trace: RankTrace) -> np.ndarray:
    """Rows, parents first and otherwise ascending. UserError, naming nodes, for a cycle."""
    dependent, dependency = as_int64(trace.dependent), as_int64(trace.dependency)
    num_rows = len(trace.signature)
    if not len(dependent) or bool((dependency < dependent).all()):
        return np.arange(num_rows)
    children: list[list[int]] = [[] for _ in range(num_rows)]
    num_parents = [0] * num_rows
    for child, parent in [*zip(trace.dependent, trace.dependency), *_stream_edges(trace)]:
        children[parent].append(child)
        num_parents[child] += 1
    ready = [row for row in range(num_rows) if not num_parents[row]]
    order = []
    while ready:
        row = heapq.heappop(ready)
        order.append(row)
        for child in children[row]:
            num_parents[child] -= 1
            if not num_parents[child]:
                heapq.heappush(ready, child)
    if len(order) < num_rows:
        raise UserError(f"rank {trace.rank}: work that waits for itself: {_cycle(trace, children, num_parents)}")
    return np.array(order, np.int64)


def node_name(trace: RankTrace, row: int) -> str:
    """How messages call a row: by its node in the file that it was read from, if any."""
    return f"node {trace.node[row]}" if len(trace.node) else f"row {row}"


def _stream_edges(trace: RankTrace) -> list[tuple[int, int]]:
    last: dict[tuple[int, int], int] = {}
    edges = []
    for row, (device, stream) in enumerate(zip(trace.device, trace.stream)):
        if stream == NO_STREAM:
            continue
        if (device, stream) in last:
            edges.append((row, last[device, stream]))
        last[device, stream] = row
    return edges


def _cycle(trace: RankTrace, children: list[list[int]], num_parents: list[int]) -> str:
    """One cycle among the rows that have parents left: walk from parent to child until a row comes again."""
    parents = {
        child: row for row, left in enumerate(num_parents) if left for child in children[row] if num_parents[child]
    }
    row, seen = next(row for row, left in enumerate(num_parents) if left), {}
    while row not in seen:
        seen[row] = len(seen)
        row = parents[row]
    names = [node_name(trace, other) for other in list(seen)[seen[row] :]]
    shown = names[:8] + (["..."] if len(names) > 8 else [])
    return " waits for ".join([*shown, names[0]])
