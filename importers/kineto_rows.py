"""The device work of one Kineto file as rows: in the order of launch, with launch, thread and operator."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median_low

from phantora.importers.kineto_events import KinetoFile, Span, Tensors, Thread, Work, is_communication
from phantora.importers.kineto_nesting import Context
from phantora.importers.report import ImportReport
from phantora.trace.model import SignatureInfo

CLOCK_NS = 2_000  # host and device clocks, and whole microseconds of older traces, differ by so much without meaning it

# Longer calls loaded the kernel's code, or waited for room in the launch queue: they launched at their end.
_LONG_LAUNCH_NS = 100_000

_FAMILIES = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        ("attention", r"flash|fmha|attention|sdpa"),
        ("convolution", r"conv|dgrad|wgrad|nchw|nhwc|implicit"),
        ("gemm", r"gemm|gemv|cutlass|cublas|xmma|nvjet|cijk|splitk"),
        ("normalization", r"norm|welford"),
        ("softmax", r"softmax"),
        ("optimizer", r"multi_tensor_apply|adam|sgd"),
        ("reduction", r"reduce|triton_(?:red|per)"),
        ("sorting", r"sort|topk|scan"),
        ("indexing", r"index|gather|scatter|embedding"),
        ("elementwise", r"elementwise|triton_poi|copy|fill"),
    )
)


@dataclass(slots=True)
class Row:
    """One piece of device work. thread: who launched it (None: not in the trace)."""

    work: Work
    issue_ns: int
    launch: Span | None
    thread: Thread | None
    context: Context

    @property
    def stream(self) -> tuple[int, int]:
        """(device, stream)."""
        return self.work.device, self.work.stream

    @property
    def communicates(self) -> bool:
        """Whether it is a kernel of NCCL or RCCL."""
        return self.work.kind == "kernel" and (self.work.comm is not None or is_communication(self.work.name))


@dataclass(slots=True)
class SignatureTable:
    """Signatures of an import, each with the times that were recorded for it."""

    numbers: dict[tuple[str, Tensors, Tensors, str, int, str, str], int] = field(default_factory=dict)
    times_ns: list[list[int]] = field(default_factory=list)

    def number(
        self,
        name: str,
        inputs: Tensors,
        outputs: Tensors,
        family: str,
        num_bytes: int,
        kernel: str,
        ns: int,
        call: str = "",
    ) -> int:
        """The number of a signature, after adding one recorded time."""
        key = (name, inputs, outputs, family, num_bytes, kernel, call)
        number = self.numbers.setdefault(key, len(self.numbers))
        if number == len(self.times_ns):
            self.times_ns.append([])
        self.times_ns[number].append(ns)
        return number

    def signatures(self, source: str = "measured") -> list[SignatureInfo]:
        """One for each; its duration is the median of the recorded times."""
        return [
            SignatureInfo(name, inputs, outputs, median_low(times), 1, source, 0, num_bytes, family, call)
            for (name, inputs, outputs, family, num_bytes, _, call), times in zip(self.numbers, self.times_ns)
        ]


def ordered_rows(file: KinetoFile, report: ImportReport) -> list[Row]:
    """The work of a file in order of launch; on each stream also in order of start."""
    launches: dict[int, Span] = {}
    for call in file.calls:
        if call.correlation >= 0:
            launches.setdefault(call.correlation, call)
    rows = [_row(work, launches.get(work.correlation), report) for work in file.work]
    _settle_order(rows, report)
    rows.sort(key=lambda row: (row.issue_ns, row.work.begin_ns, row.work.correlation, row.work.stream))
    _check_streams(rows, report)
    seen = {row.work.correlation for row in rows}
    for call in file.calls:
        if "LaunchKernel" in call.name and call.correlation not in seen:
            report.leave_out("launches whose kernel is not in the trace", call.name)
    return rows


def _row(work: Work, launch: Span | None, report: ImportReport) -> Row:
    issue = work.begin_ns if launch is None else launch.begin_ns
    if launch is not None and launch.end_ns - launch.begin_ns > _LONG_LAUNCH_NS:
        issue = max(issue, min(launch.end_ns, work.begin_ns))
    if launch is None:
        report.guess("kernels and copies whose launch is not in the trace: launched when they began", work.name)
    elif issue > work.begin_ns + CLOCK_NS:
        report.doubt("kernels and copies that began before their launch", work.name)
    return Row(work, min(issue, work.begin_ns), launch, launch.thread if launch else None, Context())


def _settle_order(rows: list[Row], report: ImportReport) -> None:
    """A stream runs its work in order of launch; where the trace says otherwise, the start counts."""
    streams: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        streams.setdefault(row.stream, []).append(row)
    for members in streams.values():
        members.sort(key=lambda row: (row.work.begin_ns, row.issue_ns, row.work.end_ns, row.work.correlation))
        for later, row in zip(reversed(members), members[-2::-1]):
            if row.issue_ns > later.issue_ns:
                report.doubt(
                    "work of a stream that began before work launched earlier: taken as launched before it",
                    row.work.name,
                )
                row.issue_ns = later.issue_ns


def _check_streams(rows: list[Row], report: ImportReport) -> None:
    ends: dict[tuple[int, int], int] = {}
    for row in rows:
        if row.work.begin_ns < ends.get(row.stream, row.work.begin_ns) - CLOCK_NS:
            report.doubt("work that began before the end of the work before it on its stream", row.work.name)
        ends[row.stream] = max(ends.get(row.stream, 0), row.work.end_ns)


@lru_cache(maxsize=65536)
def family_of(kernel: str) -> str:
    """The family of a kernel by its name; 'other' when it says nothing."""
    head = kernel[:400]
    return next((family for family, pattern in _FAMILIES if pattern.search(head)), "other")


def longest_kernels(rows: list[Row]) -> dict[int, Row]:
    """Of each operator (by the id of its span) the kernel that took longest: the one that has the operator's call.

    A call is priced as a whole, so only one of its kernels may have it.
    """
    longest: dict[int, Row] = {}
    for row in rows:
        if row.context.op is not None and row.work.kind == "kernel":
            other = longest.setdefault(id(row.context.op), row)
            if row.work.end_ns - row.work.begin_ns > other.work.end_ns - other.work.begin_ns:
                longest[id(row.context.op)] = row
    return longest


def signature_of(row: Row, table: SignatureTable, longest: dict[int, Row]) -> int:
    """The signature of a row that is no communication: of the operator that launched it, where that is known.

    Kernels of one operator are signatures of one name, told apart by their kernel. longest: see longest_kernels.
    """
    work, op = row.work, row.context.op
    length = work.end_ns - work.begin_ns
    if work.kind != "kernel":
        return table.number(work.name, (), (), work.kind, work.bytes, "", length)
    if op is None or "::" not in op.name or op.name.startswith("autograd::engine::"):
        return table.number(work.name, (), (), family_of(work.name), 0, "", length)
    call = op.call if longest.get(id(op)) is row else ""
    return table.number(op.name, op.inputs, op.outputs, family_of(work.name), 0, work.name, length, call)
