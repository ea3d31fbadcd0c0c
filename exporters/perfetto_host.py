"""What a rank's host did, as slices that nest: marks, waits, and a launch for each piece of device work.

A launch ends when the host had issued the work. How long it took is not recorded: it is drawn as long as the cluster's
host needs for such a call (phantora.cluster: [host] launch_us), but never over anything else that the host did before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from phantora.exporters import perfetto_layouts as layouts
from phantora.exporters.lanes import nesting_lanes

from phantora.cluster.spec import Cluster
from phantora.trace.columns import as_int64
from phantora.trace.model import RankTrace

Span = tuple[int, int, str, str]  # begin_ns, end_ns, name, category
HostEvent = tuple[int, int, str, str]  # time_ns, TrackEvent.Type, name, category
_USUAL_LAUNCH_NS = 4_000  # where the cluster is not known: a kernel launched from Python, as in most presets


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one host thread in order of time: slices, and the rows that they launched."""

    begin_ns: np.ndarray
    end_ns: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True, slots=True)
class HostThread:
    """One host thread. lanes: marks and waits that nest, by begin; further lanes hold those that do not nest with the
    first."""

    number: int
    lanes: list[list[Span]]
    instants: list[HostEvent]
    launches: Launches

    @property
    def events(self) -> list[HostEvent]:
        """Of the first lane, in order."""
        return sorted(nested_events(self.lanes[0]) + self.instants, key=lambda event: event[0])


def host_threads(trace: RankTrace, cluster: object, with_launches: bool) -> list[HostThread]:
    """The host threads of a rank, the main thread first (it is always there)."""
    spans, instants = _spans(trace)
    threads = _of_rows(trace.thread, len(trace.issue_ns))
    used = sorted({0, *spans, *(np.unique(threads).tolist() if with_launches else ())})
    found = []
    for number in used:
        lanes = nesting_lanes(spans.get(number, [])) or [[]]
        marks = instants if number == 0 else []
        chosen = np.flatnonzero(threads == number) if with_launches else np.empty(0, np.int64)
        borders = [time for begin, end, *_ in lanes[0] for time in (begin, end)] + [mark[0] for mark in marks]
        found.append(HostThread(number, lanes, marks, _launches(trace, cluster, chosen, borders)))
    return found


def blocked_name(reason: str) -> str:
    """Title of a span in which the host waited."""
    return f"{reason} synchronize" if reason in ("stream", "event", "device") else reason


def nested_events(spans: list[Span]) -> list[HostEvent]:
    """BEGIN and END events of spans that nest, in an order that keeps them nested."""
    events: list[HostEvent] = []
    stack: list[tuple[int, str, str]] = []
    for begin, end, name, category in spans:
        while stack and stack[-1][0] <= begin:
            closed_at, *what = stack.pop()
            events.append((closed_at, layouts.SLICE_END, *what))
        events.append((begin, layouts.SLICE_BEGIN, name, category))
        stack.append((end, name, category))
    events += [(end, layouts.SLICE_END, *what) for end, *what in reversed(stack)]
    return events


def _spans(trace: RankTrace) -> tuple[dict[int, list[Span]], list[HostEvent]]:
    """Waits and ranges by host thread (ranges are the main thread's), and instants. Waits of no length are not
    drawn."""
    spans: dict[int, list[Span]] = {}
    threads = _of_rows(trace.wait_thread, len(trace.wait_begin_ns)).tolist()
    for begin, end, reason, thread in zip(trace.wait_begin_ns, trace.wait_end_ns, trace.wait_reason, threads):
        if end > begin:
            spans.setdefault(thread, []).append((begin, end, blocked_name(reason), "blocked"))
    instants: list[HostEvent] = []
    stack: list[tuple[int, str]] = []
    for time, name, depth in zip(trace.mark_ns, trace.mark_name, trace.mark_depth):
        if depth > 0:
            stack.append((time, name))
        elif depth == 0:
            instants.append((time, layouts.INSTANT, name, "range"))
        elif stack:
            begin, opened = stack.pop()
            spans.setdefault(0, []).append((begin, time, opened, "range"))
    for begin, name in stack:
        spans.setdefault(0, []).append((begin, max(begin, trace.host_end_ns), name, "range"))
    return spans, instants


def _launches(trace: RankTrace, cluster: object, rows: np.ndarray, times_ns: list[int]) -> Launches:
    """times_ns: when anything else begins or ends on the thread."""
    issue = as_int64(trace.issue_ns)[rows]
    order = np.argsort(issue, kind="stable")
    rows, issue = rows[order], issue[order]
    borders = np.unique(np.array([0, *times_ns], np.int64))
    borders = borders[np.searchsorted(borders, issue) - 1] if len(issue) else issue  # the last one before
    begin = issue - np.where(as_int64(trace.signature)[rows] < 0, *_launch_ns(cluster))
    begin = np.maximum(begin, np.where(issue > 0, borders, 0))
    begin[1:] = np.maximum(begin[1:], issue[:-1])
    return Launches(np.minimum(begin, issue), issue, rows)


def _launch_ns(cluster: object) -> tuple[int, int]:
    """What launching a collective, and a kernel, costs the host, called from Python."""
    if not isinstance(cluster, Cluster):
        return _USUAL_LAUNCH_NS, _USUAL_LAUNCH_NS
    costs = cluster.host.launch_ns
    return costs["collective"][0], costs["kernel"][0]


def _of_rows(column: object, count: int) -> np.ndarray:
    """The column, or the main thread for all where a trace does not tell threads apart."""
    values = as_int64(column)  # type: ignore[arg-type]
    return values if len(values) == count else np.zeros(count, np.int64)
