"""Puts the rows of a rank with several threads into an order that real scheduling does not decide.

Records of one thread arrive in order, those of two threads interleaved as the operating system ran them. Rows are sorted by
(host time, thread, order within the thread), which are facts of virtual time, but a row stands behind all that it waited for.
Memory counters are added up anew in that order. What threads do on one and the same stream, without waiting for one another,
is evaluated as it arrived (such a script is itself a race) and keeps the order of its evaluation.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence

from phantora.trace.model import RankTrace

_ROW_COLUMNS = ("device", "stream", "signature", "issue_ns", "start_ns", "end_ns", "thread")


def order_threads(trace: RankTrace) -> Sequence[int]:
    """Reorder `trace` in place; nothing changes when one thread did everything. New numbers of its waits, by old number.

    (Peers of waits are not changed: they are numbers of other ranks' waits, too.)
    """
    if any(trace.memory_thread):
        _order_memory(trace)
    if not any(trace.thread) and not any(trace.wait_thread):
        return range(len(trace.wait_reason))
    new_rows = _order_rows(trace) if any(trace.thread) else range(len(trace.thread))
    return _order_waits(trace, new_rows)


def _order_rows(trace: RankTrace) -> Sequence[int]:
    """New number of each row."""
    keys = _keys(trace)
    order = sorted(range(len(keys)), key=keys.__getitem__)
    new = [0] * len(order)
    for position, old in enumerate(order):
        new[old] = position
    _place_waits(trace, new)
    for name in _ROW_COLUMNS:
        column = getattr(trace, name)
        setattr(trace, name, array(column.typecode, (column[row] for row in order)))
    pairs = sorted((new[row], new[earlier]) for row, earlier in zip(trace.dependent, trace.dependency))
    trace.dependent = array("q", (row for row, _ in pairs))
    trace.dependency = array("q", (earlier for _, earlier in pairs))
    _renumber_collectives(trace)
    return new


def _keys(trace: RankTrace) -> list[tuple[int, ...]]:
    """(time, depth, host time, thread, number in the thread) of each row. The time is the host time, but never less than
    that of a row before it on its stream or in its thread, or of one that it waited for; depth: how many rows of the same
    time it stands behind."""
    waited: dict[int, list[int]] = {}
    for row, earlier in zip(trace.dependent, trace.dependency):
        waited.setdefault(row, []).append(earlier)
    keys: list[tuple[int, ...]] = []
    last: dict[tuple[str, int, int], int] = {}
    counts: dict[int, int] = {}
    for row, thread in enumerate(trace.thread):
        lines = (("stream", trace.device[row], trace.stream[row]), ("thread", thread, 0))
        before = [keys[earlier] for earlier in (*(last[line] for line in lines if line in last), *waited.get(row, ()))]
        time_ns = max([trace.issue_ns[row], *(key[0] for key in before)])
        depth = max((key[1] + 1 for key in before if key[0] == time_ns), default=0)
        counts[thread] = counts.get(thread, 0) + 1
        keys.append((time_ns, depth, trace.issue_ns[row], thread, counts[thread]))
        last.update(dict.fromkeys(lines, row))
    return keys


def _place_waits(trace: RankTrace, new: Sequence[int]) -> None:
    """wait_position in new numbers: before the next row of the wait's own thread (to be called with the old columns)."""
    rows: dict[int, list[int]] = {}
    for row, thread in enumerate(trace.thread):
        rows.setdefault(thread, []).append(row)
    for entry, thread in enumerate(trace.wait_thread):
        own = rows.get(thread, [])
        following = bisect_left(own, trace.wait_position[entry])
        trace.wait_position[entry] = new[own[following]] if following < len(own) else len(new)


def _order_waits(trace: RankTrace, new_rows: Sequence[int]) -> list[int]:
    if not any(trace.thread):  # threads that issue nothing stand behind all rows, whenever they were heard of
        for entry, thread in enumerate(trace.wait_thread):
            if thread:
                trace.wait_position[entry] = len(new_rows)
    order = sorted(range(len(trace.wait_reason)), key=lambda i: (trace.wait_end_ns[i], trace.wait_thread[i], i))
    new = [0] * len(order)
    for position, old in enumerate(order):
        new[old] = position
    for name in ("wait_begin_ns", "wait_end_ns", "wait_position", "wait_thread", "wait_delay_ns"):
        column = getattr(trace, name)
        setattr(trace, name, array(column.typecode, (column[i] for i in order)))
    trace.wait_reason = [trace.wait_reason[i] for i in order]
    trace.wait_peers = [trace.wait_peers[i] for i in order]
    trace.wait_rows = [tuple(sorted(new_rows[row] for row in trace.wait_rows[i])) for i in order]
    return new


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
