"""What one rank has to show: its work as arrays, by track; its host's spans; the titles of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from phantora.exporters import perfetto_layouts as layouts

from phantora.trace.columns import as_int64, finished_rows
from phantora.trace.model import RankTrace, Run

Span = tuple[int, int, str, str]  # begin_ns, end_ns, name, category
HostEvent = tuple[int, int, str, str]  # time_ns, TrackEvent.Type, name, category


@dataclass(frozen=True, slots=True)
class Columns:
    """The work columns of a rank as arrays. finished: rows that ran to their end, ordered by start."""

    trace: RankTrace
    device: np.ndarray
    stream: np.ndarray
    signature: np.ndarray
    issue_ns: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    finished: np.ndarray

    @classmethod
    def of(cls, trace: RankTrace) -> Columns:
        names = ("device", "stream", "signature", "issue_ns", "start_ns", "end_ns")
        columns = [as_int64(getattr(trace, name)) for name in names]
        rows = finished_rows(trace)
        return cls(trace, *columns, rows[np.argsort(columns[4][rows], kind="stable")])

    @property
    def several_devices(self) -> bool:
        return len(self.device) > 0 and bool((self.device != self.device[0]).any())

    def tracks(self) -> list[tuple[int, int, bool, np.ndarray]]:
        """(device, stream, communication, rows by start): kernels first, so that they stand above communication."""
        rows = self.finished
        keys = np.stack([self.signature[rows] < 0, self.device[rows], self.stream[rows]], axis=1).astype(np.int64)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        return [
            (int(device), int(stream), bool(communication), rows[inverse == i])
            for i, (communication, device, stream) in enumerate(distinct)
        ]

    def held_up(self) -> list[tuple[int, int]]:
        """Pairs (dependent, dependency) where the dependent started at the instant the dependency ended."""
        dependent, dependency = as_int64(self.trace.dependent), as_int64(self.trace.dependency)
        begin, end = self.start_ns[dependent], self.end_ns[dependency]
        real = (begin == end) & (begin > self.issue_ns[dependent]) & (end > self.start_ns[dependency])
        real &= self.end_ns[dependent] >= 0
        return list(zip(dependent[real].tolist(), dependency[real].tolist()))


def last_ns(run: Run, ranks: list[RankTrace]) -> int:
    """The latest time that a trace of these ranks can hold."""
    lasts = [run.virtual_ns]
    for trace in ranks:
        lasts.append(trace.host_end_ns)
        for name in ("issue_ns", "end_ns", "memory_ns", "wait_end_ns", "mark_ns"):
            column = as_int64(getattr(trace, name))
            lasts.append(int(column.max()) if len(column) else 0)
    return max(lasts)


def blocked_name(reason: str) -> str:
    """Title of a span in which the host waited."""
    return f"{reason} synchronize" if reason in ("stream", "event", "device") else reason


def wait_name(rank: int) -> str:
    """Title of the part of a collective that passes before its last member comes."""
    return f"wait for rank {rank}"


def stream_title(trace: RankTrace, device: int | None, stream: int, communication: bool) -> str:
    """Title of a stream's row; device: only when the rank has several."""
    title = "stream 0 (default)" if stream == 0 else f"stream {stream}"
    if communication:
        title = f"nccl {trace.comm_streams.get(stream, f'(stream {stream})')}"
    return title if device is None else f"device {device} {title}"


def host_spans(trace: RankTrace) -> tuple[list[Span], list[HostEvent]]:
    """(begin, end, name, category) of waits and ranges, and instants as events."""
    spans = [
        (begin, end, blocked_name(reason), "blocked")
        for begin, end, reason in zip(trace.wait_begin_ns, trace.wait_end_ns, trace.wait_reason)
    ]
    instants, stack = [], []
    for time, name, depth in zip(trace.mark_ns, trace.mark_name, trace.mark_depth):
        if depth > 0:
            stack.append((time, name))
        elif depth == 0:
            instants.append((time, layouts.INSTANT, name, "range"))
        elif stack:
            begin, opened = stack.pop()
            spans.append((begin, time, opened, "range"))
    spans += [(begin, max(begin, trace.host_end_ns), name, "range") for begin, name in stack]
    return spans, instants


def nested_events(spans: list[Span]) -> list[HostEvent]:
    """BEGIN and END events of spans that nest, in an order that keeps them nested."""
    events, stack = [], []
    for begin, end, name, category in spans:
        while stack and stack[-1][0] <= begin:
            closed_at, *what = stack.pop()
            events.append((closed_at, layouts.SLICE_END, *what))
        events.append((begin, layouts.SLICE_BEGIN, name, category))
        stack.append((end, name, category))
    events += [(end, layouts.SLICE_END, *what) for end, *what in reversed(stack)]
    return events
