"""Traces without any device work: the outermost operators of each host thread are rows of the CPU."""

from __future__ import annotations

from phantora.importers.kineto_events import KinetoFile, Span, Thread
from phantora.importers.kineto_rows import SignatureTable
from phantora.importers.report import ImportReport
from phantora.importers.waits import HostWait, append_wait
from phantora.trace.model import HOST_DEVICE, RankTrace


def append_cpu_work(
    trace: RankTrace, file: KinetoFile, threads: dict[Thread, int], table: SignatureTable, report: ImportReport
) -> None:
    """One row for each outermost operator; its thread is the row's stream, and stands still until it has ended."""
    ops = outermost(file.ops)
    if not ops:
        return
    report.note("the trace holds no work of a GPU: its rows are the outermost operators of the CPU")
    report.take("operators of the CPU", len(ops))
    report.leave_out("operators inside other operators of the CPU", count=len(file.ops) - len(ops))
    lines: dict[Thread, int] = {}
    for number, op in enumerate(ops):
        trace.device.append(HOST_DEVICE)
        trace.stream.append(lines.setdefault(op.thread, len(lines)))
        trace.signature.append(table.number(op.name, op.inputs, op.outputs, "cpu", 0, "cpu", op.end_ns - op.begin_ns))
        trace.issue_ns.append(op.begin_ns)
        trace.start_ns.append(op.begin_ns)
        trace.end_ns.append(op.end_ns)
        trace.thread.append(threads[op.thread])
        wait = HostWait(op.begin_ns, op.end_ns, "cpu", number + 1, op.thread, (number,))
        append_wait(trace, wait, threads[op.thread])


def outermost(ops: list[Span]) -> list[Span]:
    """Operators that no other operator of their thread is round, by begin."""
    ends: dict[Thread, int] = {}
    found = []
    for op in sorted(ops, key=lambda op: (op.begin_ns, -op.end_ns, str(op.thread))):
        if op.begin_ns >= ends.get(op.thread, op.begin_ns):
            found.append(op)
            ends[op.thread] = op.end_ns
    return found
