"""Puts the rows of a rank with several threads into an order that real scheduling does not decide.

Records of one thread arrive in order, those of two threads interleaved as the operating system ran them. Rows are sorted by
(host time, thread, order within the thread); all three are facts of virtual time. Memory counters are added up anew in that
order. What threads do on one and the same stream is evaluated as it arrived: such a script is itself a race.
"""

from __future__ import annotations

from array import array

from phantora.trace.model import RankTrace

_ROW_COLUMNS = ("device", "stream", "signature", "issue_ns", "start_ns", "end_ns", "thread")


def order_threads(trace: RankTrace) -> None:
    """Reorder `trace` in place; nothing changes when one thread did everything."""
    if any(trace.thread):
        _order_rows(trace)
    if any(trace.memory_thread):
        _order_memory(trace)


def _order_rows(trace: RankTrace) -> None:
    order = sorted(range(len(trace.thread)), key=lambda row: (trace.issue_ns[row], trace.thread[row], row))
    for name in _ROW_COLUMNS:
        column = getattr(trace, name)
        setattr(trace, name, array(column.typecode, (column[row] for row in order)))
    new = {old: position for position, old in enumerate(order)}
    pairs = sorted((new[row], new[earlier]) for row, earlier in zip(trace.dependent, trace.dependency))
    trace.dependent = array("q", (row for row, _ in pairs))
    trace.dependency = array("q", (earlier for _, earlier in pairs))
    _renumber_collectives(trace)


def _renumber_collectives(trace: RankTrace) -> None:
    """work_collectives in row order."""
    ordered = []
    for row, signature in enumerate(trace.signature):
        if signature < 0:
            ordered.append(trace.work_collectives[-1 - signature])
            trace.signature[row] = -len(ordered)
    trace.work_collectives = ordered


def _order_memory(trace: RankTrace) -> None:
    last: dict[int, tuple[int, int]] = {}
    changes = []
    for device, allocated, reserved in zip(trace.memory_device, trace.allocated_bytes, trace.reserved_bytes):
        before = last.get(device, (0, 0))
        changes.append((allocated - before[0], reserved - before[1]))
        last[device] = (allocated, reserved)
    order = sorted(range(len(changes)), key=lambda i: (trace.memory_ns[i], trace.memory_thread[i], i))
    totals: dict[int, tuple[int, int]] = {}
    for name in ("memory_device", "memory_ns", "memory_thread"):
        column = getattr(trace, name)
        setattr(trace, name, array(column.typecode, (column[i] for i in order)))
    for position, i in enumerate(order):
        device = trace.memory_device[position]
        before = totals.get(device, (0, 0))
        totals[device] = (before[0] + changes[i][0], before[1] + changes[i][1])
        trace.allocated_bytes[position], trace.reserved_bytes[position] = totals[device]
