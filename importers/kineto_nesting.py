"""Which operator a call was made in: spans of a thread nest, so a stack tells it."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.importers.kineto_events import KinetoFile, Span, Thread

_MAX_DEPTH = 200  # looked at from the inside; deeper nesting says nothing more


@dataclass(frozen=True, slots=True)
class Context:
    """Round a call, the innermost each: operator, c10d record, range or operator of a collective."""

    op: Span | None = None
    comm: Span | None = None
    collective: Span | None = None


NOWHERE = Context()


def contexts(file: KinetoFile, points: list[Span]) -> list[Context]:
    """For each of `points` (calls), what it was made in."""
    by_thread: dict[Thread, list[int]] = {}
    for number, point in enumerate(points):
        by_thread.setdefault(point.thread, []).append(number)
    spans: dict[Thread, list[Span]] = {}
    for span in (*file.ops, *file.annotations):
        if span.thread in by_thread:
            spans.setdefault(span.thread, []).append(span)
    found = [NOWHERE] * len(points)
    for thread, numbers in by_thread.items():
        if thread in spans:
            _walk(spans[thread], numbers, points, found)
    return found


def _walk(spans: list[Span], numbers: list[int], points: list[Span], found: list[Context]) -> None:
    spans.sort(key=lambda span: (span.begin_ns, -span.end_ns))
    numbers.sort(key=lambda number: points[number].begin_ns)
    stack: list[Span] = []
    at = 0
    known = NOWHERE
    for number in numbers:
        time = points[number].begin_ns
        before = len(stack), at
        while at < len(spans) and spans[at].begin_ns <= time:
            while stack and stack[-1].end_ns <= spans[at].begin_ns:
                stack.pop()
            stack.append(spans[at])
            at += 1
        while stack and stack[-1].end_ns < time:
            stack.pop()
        if (len(stack), at) != before:
            known = _context(stack, time)
        found[number] = known


def _context(stack: list[Span], time: int) -> Context:
    op = comm = collective = None
    for span in stack[: -_MAX_DEPTH - 1 : -1]:
        if span.end_ns < time:
            continue  # spans that do not nest
        if op is None and span.kind == "op":
            op = span
        if comm is None and span.name == "record_param_comms":
            comm = span
        if collective is None and span.name.startswith(("nccl:", "c10d::", "_c10d_functional::")):
            collective = span
    return Context(op, comm, collective)
