"""One Kineto file as a RankTrace (times still absolute) and the communication in it."""

from __future__ import annotations

from dataclasses import dataclass

from phantora.importers.kineto_comm import CommPart, comm_part
from phantora.importers.kineto_cpu import append_cpu_work
from phantora.importers.kineto_events import KinetoFile, Span, Thread
from phantora.importers.kineto_nesting import contexts
from phantora.importers.kineto_rows import Row, SignatureTable, longest_kernels, ordered_rows, signature_of
from phantora.importers.kineto_sync import Waits, find_waits, is_stream_wait
from phantora.importers.waits import append_wait
from phantora.importers.report import ImportReport
from phantora.trace.model import RankTrace

_OPTIMIZER_MARK = "optimizer.step"  # as recorded runs have it (report.breakdown)
_MAX_THREADS = (1 << 15) - 1


@dataclass(slots=True)
class BuiltRank:
    """trace: signatures of communication are -1, -2, ... in the order of `parts`; work_collectives is still empty.

    begin_ns: the earliest event; None when there is none.
    """

    trace: RankTrace
    parts: list[CommPart]
    begin_ns: int | None
    file: KinetoFile


def build_rank(file: KinetoFile, rank: int, world_size: int, table: SignatureTable, report: ImportReport) -> BuiltRank:
    """The rows, waits, marks and memory of one file."""
    rows = ordered_rows(file, report)
    waiting = [number for number, call in enumerate(file.calls) if is_stream_wait(call)]
    launched = [row for row in rows if row.launch is not None]
    points = [row.launch for row in launched if row.launch is not None] + [file.calls[number] for number in waiting]
    places = contexts(file, points)
    for row, place in zip(launched, places):
        row.context = place
    call_contexts = dict(zip(waiting, places[len(launched) :]))
    trace = RankTrace(rank)
    threads = _thread_numbers(file, rows)
    parts = _append_rows(trace, rows, threads, world_size, table, report)
    _append_waits(trace, find_waits(file, rows, threads, call_contexts, report), threads, report)
    if not rows:
        append_cpu_work(trace, file, threads, table, report)
    _append_marks(trace, file, _main_thread(file, rows, list(threads)), report)
    _append_memory(trace, file, threads)
    trace.host_end_ns = max((span.end_ns for span in _host_spans(file)), default=max(trace.end_ns, default=0))
    trace.host_end_ns = max([trace.host_end_ns, *trace.mark_ns])
    begins = [span.begin_ns for span in _host_spans(file)] + [row.issue_ns for row in rows]
    begins += [*trace.mark_ns[:1], *trace.memory_ns]
    return BuiltRank(trace, parts, min(begins, default=None), file)


def _host_spans(file: KinetoFile) -> list[Span]:
    return [*file.ops, *file.annotations, *file.calls]


def _thread_numbers(file: KinetoFile, rows: list[Row]) -> dict[Thread, int]:
    """0: the main thread and autograd's, which it waits for; the others by their first event."""
    first: dict[Thread, int] = {}
    for span in _host_spans(file):
        first[span.thread] = min(first.get(span.thread, span.begin_ns), span.begin_ns)
    order = sorted(first, key=lambda thread: (first[thread], str(thread)))
    main = _main_thread(file, rows, order)
    numbers: dict[Thread, int] = dict.fromkeys(file.autograd_threads, 0)
    others = 0
    for thread in order:
        if thread != main and thread not in numbers:
            others = min(others + 1, _MAX_THREADS)
            numbers[thread] = others
    if main is not None:
        numbers[main] = 0
    return numbers


def _main_thread(file: KinetoFile, rows: list[Row], threads: list[Thread]) -> Thread | None:
    """On Linux the main thread has the number of its process; else the one that marks steps, or launches most."""
    launches: dict[Thread | None, int] = {}
    for row in rows:
        launches[row.thread] = launches.get(row.thread, 0) + 1
    steps = {span.thread: None for span in file.annotations if span.name.startswith("ProfilerStep")}

    def likeness(thread: Thread) -> tuple[bool, bool, bool, int]:
        is_busy = thread in launches or thread in steps
        return (
            thread[0] == thread[1] and is_busy,
            thread in steps,
            thread not in file.autograd_threads,
            launches.get(thread, 0),
        )

    return max(threads, key=likeness, default=None)


def _append_rows(
    trace: RankTrace, rows: list[Row], threads: dict[Thread, int], world_size: int, table: SignatureTable,
    report: ImportReport,
) -> list[CommPart]:  # fmt: skip
    parts: list[CommPart] = []
    streams: dict[tuple[int, int], int] = {}
    longest = longest_kernels(rows)
    for number, row in enumerate(rows):
        part = None
        if row.communicates:
            place = streams.setdefault(row.stream, len(streams))
            part = comm_part(number, row, place, world_size, report)
        if part is not None and part.has_peer:
            parts.append(part)
            signature = -len(parts)
        else:
            if part is not None:
                report.guess(
                    "sends and receives whose peer is not in the trace: kernels that take their time", row.work.name
                )
            signature = signature_of(row, table, longest)
        report.take({"kernel": "kernels", "memcpy": "copies", "memset": "memsets"}[row.work.kind])
        trace.device.append(row.work.device)
        trace.stream.append(row.work.stream)
        trace.signature.append(signature)
        trace.issue_ns.append(row.issue_ns)
        trace.start_ns.append(row.work.begin_ns)
        trace.end_ns.append(row.work.end_ns)
        trace.thread.append(threads.get(row.thread, 0) if row.thread is not None else 0)
    report.take("of these, kernels of communication", len(parts))
    report.take("streams", len({row.stream for row in rows}))
    return parts


def _append_waits(trace: RankTrace, waits: Waits, threads: dict[Thread, int], report: ImportReport) -> None:
    for dependent, dependency in waits.dependencies:
        trace.dependent.append(dependent)
        trace.dependency.append(dependency)
    for wait in waits.host:
        append_wait(trace, wait, threads[wait.thread])
    report.take("waits of the host", len(waits.host))
    report.take("dependencies between streams", len(waits.dependencies))


def _append_marks(trace: RankTrace, file: KinetoFile, main: Thread | None, report: ImportReport) -> None:
    """Ranges of the main thread. Ranges of autograd's threads need not nest in them."""
    spans = sorted(
        (span for span in file.annotations if span.thread == main and not span.name.startswith("nccl:")),
        key=lambda span: (span.begin_ns, -span.end_ns),
    )
    report.take("ranges", len(spans))
    named = sum(span.name.startswith("nccl:") for span in file.annotations)
    report.leave_out("ranges of other threads", count=len(file.annotations) - len(spans) - named)
    points = sorted(((ns, name) for ns, thread, name in file.instants if thread == main), reverse=True)
    report.take("marks of a moment", len(points))
    report.leave_out("marks of other threads", count=len(file.instants) - len(points))
    has_steps = any(name == _OPTIMIZER_MARK for _, name in points)  # as our own export writes them
    stack: list[Span] = []

    def close_until(ns: int) -> None:
        while stack and stack[-1].end_ns <= ns:
            _mark_points(trace, points, stack[-1].end_ns)
            _close(trace, stack.pop(), has_steps)
        _mark_points(trace, points, ns)

    for span in spans:
        close_until(span.begin_ns)
        _mark(trace, span.begin_ns, span.name, 1)
        if stack and span.end_ns > stack[-1].end_ns:
            report.doubt("ranges that end after the range round them: cut", span.name)
            span = Span(span.begin_ns, stack[-1].end_ns, span.thread, span.name, span.kind)
        stack.append(span)
    close_until(max([span.end_ns for span in stack] + [ns for ns, _ in points[:1]], default=0))


def _mark_points(trace: RankTrace, points: list[tuple[int, str]], until_ns: int) -> None:
    """points: the latest first."""
    while points and points[-1][0] <= until_ns:
        _mark(trace, *points.pop(), 0)


def _close(trace: RankTrace, span: Span, has_steps: bool) -> None:
    _mark(trace, span.end_ns, span.name, -1)
    if not has_steps and span.name.startswith("Optimizer.step#"):
        _mark(trace, span.end_ns, _OPTIMIZER_MARK, 0)


def _mark(trace: RankTrace, ns: int, name: str, depth: int) -> None:
    trace.mark_ns.append(ns)
    trace.mark_name.append(name)
    trace.mark_depth.append(depth)


def _append_memory(trace: RankTrace, file: KinetoFile, threads: dict[Thread, int]) -> None:
    for ns, thread, device, allocated, reserved in sorted(file.memory, key=lambda sample: sample[0]):
        trace.memory_ns.append(ns)
        trace.memory_thread.append(threads.get(thread, 0))
        trace.memory_device.append(device)
        trace.allocated_bytes.append(allocated)
        trace.reserved_bytes.append(reserved)
