"""Execution traces laid beside Kineto traces of the same step: which node is which operator, and what the node adds.

Newer traces share record function ids. In older ones each thread has the same operators in the same order (but for the
profiler's own), so they are paired in order; where they differ, the nearest place where they agree again is sought.
"""

from __future__ import annotations

from collections.abc import Sequence

from phantora.importers.kineto_events import KinetoFile, Span, Thread
from phantora.importers.pytorch_et_file import EtFile, EtNode, specs
from phantora.importers.report import ImportReport

_WINDOW = 64  # operators looked ahead to find the order again
_ENOUGH = 0.5  # of the operators must be found, or the traces are not of the same step
_FRAME = ("[pytorch|profiler|", "ProfilerStep#")


def link(files: Sequence[KinetoFile], ranks: Sequence[int], traces: Sequence[EtFile], report: ImportReport) -> None:
    """Give the operators of `files` what the execution traces know. What does not fit is reported."""
    free = list(range(len(files)))
    for trace in traces:
        at = _partner(trace, files, free)
        if at is None:
            report.leave_out("execution traces without a Kineto trace of their process", trace.shown)
            continue
        free.remove(at)
        file = files[at]
        pairs = by_record_function(file, trace) or by_order(file, trace)
        num_ops = sum(not span.name.startswith(_FRAME) for span in (*file.ops, *file.annotations))
        if len(pairs) < _ENOUGH * num_ops:
            what = "execution traces of another step than the Kineto trace of their process"
            report.leave_out(what, f"{trace.shown}: {len(pairs)} of {num_ops} operators found")
            continue
        for span, node in pairs:
            _enrich(span, node)
        report.take("operators linked with an execution trace", len(pairs))
        report.leave_out("operators that are not in the execution trace", count=num_ops - len(pairs))
        report.note(f"rank {ranks[at]}: linked with {trace.shown} (schema {trace.schema})")


def _partner(trace: EtFile, files: Sequence[KinetoFile], free: list[int]) -> int | None:
    for at in free:
        if trace.pid >= 0 and any(span.thread[0] == trace.pid for span in files[at].ops[:1]):
            return at
    return free[0] if len(files) == 1 and free else None


def by_record_function(file: KinetoFile, trace: EtFile) -> list[tuple[Span, EtNode]]:
    """Pairs with one record function id and one name; [] when fewer than half of the ids agree."""
    nodes = {node.rf_id: node for node in trace.nodes if node.rf_id > 0}
    spans = [span for span in (*file.ops, *file.annotations) if span.record_function > 0]
    pairs = [(span, nodes[span.record_function]) for span in spans if span.record_function in nodes]
    same = [(span, node) for span, node in pairs if span.name == node.name]
    return same if len(same) > _ENOUGH * len(spans) else []


def by_order(file: KinetoFile, trace: EtFile) -> list[tuple[Span, EtNode]]:
    """Pairs of one name in the order of a thread."""
    spans: dict[Thread, list[Span]] = {}
    for span in sorted(
        (*file.ops, *file.annotations), key=lambda span: (span.begin_ns, -span.end_ns, span.external_id)
    ):
        if not span.name.startswith(_FRAME):
            spans.setdefault(span.thread, []).append(span)
    nodes: dict[int, list[EtNode]] = {}
    for node in trace.nodes:
        if not node.name.startswith(_FRAME):
            nodes.setdefault(node.tid, []).append(node)
    pairs: list[tuple[Span, EtNode]] = []
    free = dict(spans)
    for members in sorted(nodes.values(), key=len, reverse=True):
        tried = {thread: _in_order(own, members) for thread, own in list(free.items())[:_WINDOW]}
        best = max(tried, key=lambda thread: len(tried[thread]), default=None)
        if best is not None and tried[best]:
            pairs += tried[best]
            del free[best]
    return pairs


def _in_order(spans: list[Span], nodes: list[EtNode]) -> list[tuple[Span, EtNode]]:
    pairs, i, j = [], 0, 0
    while i < len(spans) and j < len(nodes):
        if spans[i].name == nodes[j].name:
            pairs.append((spans[i], nodes[j]))
            i, j = i + 1, j + 1
            continue
        step = _resume(spans[i : i + _WINDOW], nodes[j : j + _WINDOW])
        i, j = i + step[0], j + step[1]
    return pairs


def _resume(spans: list[Span], nodes: list[EtNode]) -> tuple[int, int]:
    """How many to skip on both sides until names agree; the fewest."""
    first: dict[str, int] = {}
    for b, node in enumerate(nodes):
        first.setdefault(node.name, b)
    found = [(a, first[span.name]) for a, span in enumerate(spans) if span.name in first]
    return min(found, key=lambda skip: (skip[0] + skip[1], skip[0]), default=(len(spans), len(nodes)))


def _enrich(span: Span, node: EtNode) -> None:
    span.inputs = span.inputs or specs(node.inputs)
    span.outputs = specs(node.outputs)
    span.call = node.call or span.call
    if span.comm is None and node.comm is not None:
        span.comm = node.comm
