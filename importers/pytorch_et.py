"""PyTorch execution traces as a Run: linked with the Kineto traces of the same step, or alone.

Alone they tell what was computed and in which order, not how long it took: rows have no times, and their signatures the
source 'unknown', so that `phantora simulate --reprice` prices them. docs/importers.md says what becomes a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from phantora.errors import UserError
from phantora.importers.kineto import add_collectives, run_of
from phantora.importers.kineto_absent import renumber, split, tell
from phantora.importers.kineto_comm import CommPart, part_from_arguments
from phantora.importers.kineto_match import Matched, match
from phantora.importers.pytorch_et_file import EtFile, EtNode, EtTensor, specs
from phantora.importers.report import ImportReport
from phantora.importers.trace_reader import read_traces
from phantora.importers.waits import HostWait, append_wait
from phantora.trace.model import RankTrace, Run, SignatureInfo

# Operators that give a tensor another description, or memory without contents: they launch nothing (of
# native_functions.yaml those whose result aliases their input, the factories of uninitialized tensors, and queries).
_NO_KERNEL = frozenset(
    (
        "_conj _neg_view _reshape_alias _to_copy _unsafe_view _version adjoint alias as_strided as_strided_ "
        "atleast_1d atleast_2d atleast_3d broadcast_tensors broadcast_to can_cast chunk conj contiguous data detach "
        "detach_ diagonal dim dropout dsplit empty empty_like empty_strided expand expand_as feature_dropout flatten "
        "hsplit imag is_complex is_floating_point is_nonzero is_pinned is_same_size item lift lift_fresh mH mT "
        "moveaxis movedim narrow new_empty new_empty_strided numel numpy_T output_nr permute pin_memory positive "
        "ravel real requires_grad_ reshape resize_ resize_as_ resolve_conj resolve_neg result_type retain_grad select "
        "set_ size slice split split_with_sizes squeeze squeeze_ stride swapaxes swapdims sym_numel sym_size "
        "sym_stride t t_ tensor_split to transpose transpose_ type_as unbind unflatten unfold unsqueeze unsqueeze_ "
        "view view_as view_as_complex view_as_real vsplit"
    ).split()
)
_READS = ("aten::_local_scalar_dense",)
_RANK_IN_NAME = re.compile(r"(\d+)\D*$")
_COMPUTE_STREAM = 0


def read(files: Sequence[str | Path]) -> tuple[Run, ImportReport]:
    """The run that these files tell of (Run.cluster is None). Kineto traces among them give the times.

    UserError with file, line and reason for what is no execution trace.
    """
    report = ImportReport()
    kineto, et = read_traces(files, report)
    if not et:
        raise UserError(
            f"no execution trace among the files; {kineto[0].shown} is a Kineto trace (phantora import kineto)"
        )
    if kineto:
        return run_of(kineto, et, report), report
    return run_of_nodes(et, report), report


def run_of_nodes(traces: list[EtFile], report: ImportReport) -> Run:
    """A Run of execution traces alone."""
    ranks = _ranks(traces, report)
    sizes = [size for trace in traces for _, size in trace.groups.values()]
    world_size = max([max(ranks) + 1, *sizes])
    signatures: dict[tuple[object, ...], int] = {}
    order = sorted(range(len(traces)), key=lambda i: ranks[i])
    built = [_Rank(traces[i], ranks[i], world_size, signatures, report).build() for i in order]
    run = Run(
        command=["phantora", "import", "pytorch-et", *(trace.shown for trace in traces)],
        cluster=None, world_size=len(traces), nproc_per_node=len(traces), source="pytorch-et",
    )  # fmt: skip
    run.ranks = [trace for trace, _ in built]
    if not any(len(trace.issue_ns) for trace in run.ranks):
        raise UserError(f"{traces[0].shown}: nothing to import: no operator works on a GPU")
    whole, cut = split(match({trace.rank: parts for trace, parts in built}, world_size, report), ranks)
    _cut_as_work(run, cut, signatures)
    tell(cut, ranks, "that takes no time (the trace has no durations)", report)
    run.signatures = [
        SignatureInfo(name, inputs, outputs, 0, 1, "unknown", 0, 0, "unknown", call)  # type: ignore[arg-type]
        for name, inputs, outputs, call in signatures
    ]
    add_collectives(run, renumber(run.ranks, whole, world_size, report), report)
    report.take("collectives", len(run.collectives))
    report.take("ranks", len(run.ranks))
    report.note("execution traces alone hold no times: all work must be priced (phantora simulate --reprice)")
    report.note("the host's time between launches is not known: it is taken as 0")
    run.notes = report.as_notes()
    return run


def _cut_as_work(run: Run, cut: list[Matched], signatures: dict[tuple[object, ...], int]) -> None:
    traces = {trace.rank: trace for trace in run.ranks}
    for collective in cut:
        key = (f"{collective.kind} of {len(collective.ranks)} ranks", (), (), "")
        for rank, part in sorted(collective.parts.items()):
            traces[rank].signature[part.row] = signatures.setdefault(key, len(signatures))


def _ranks(traces: list[EtFile], report: ImportReport) -> list[int]:
    """The last number in each name if these are distinct and small, else in order of the files."""
    if len(traces) == 1:
        return [0]
    found = [_RANK_IN_NAME.search(re.sub(r"(\.json)?(\.gz)?$", "", trace.shown)) for trace in traces]
    numbers = [int(match[1][-6:]) if match else -1 for match in found]
    if min(numbers) >= 0 and len(set(numbers)) == len(numbers) and max(numbers) < 100_000:
        report.guess("files whose rank is taken from their name", traces[0].shown, len(traces))
        return numbers
    report.guess("files that do not say their rank: numbered in order", traces[0].shown, len(traces))
    return list(range(len(traces)))


class _Rank:
    """Makes the rows of one execution trace."""

    def __init__(
        self, trace: EtFile, rank: int, world_size: int, signatures: dict[tuple[object, ...], int], report: ImportReport
    ) -> None:
        self.file, self.world_size, self.signatures, self.report = trace, world_size, signatures, report
        self.trace = RankTrace(rank)
        self.parts: list[CommPart] = []
        self.groups: dict[str, int] = {}  # group -> its stream
        self.last_compute = -1
        self.written: dict[int, int] = {}  # storage -> row of communication that used it last
        self.by_seq: dict[int, int] = {}
        self.pending: list[int] = []  # rows of communication that the next kernel waits for
        self.threads = self._thread_numbers()

    def build(self) -> tuple[RankTrace, list[CommPart]]:
        """All rows, in the order of node ids, which is that of the calls."""
        busy = self._outer_operators()
        for node in self.file.nodes:
            if node.wait_for >= 0:
                if node.wait_for in self.by_seq:
                    self.pending.append(self.by_seq[node.wait_for])
            elif node.comm is not None:
                self._communication(node)
            elif node.id in busy:
                self.report.leave_out("operators and ranges made of other operators", node.name)
            else:
                self._operator(node)
        self.report.take("kernels of communication", len(self.parts))
        return self.trace, self.parts

    def _thread_numbers(self) -> dict[int, int]:
        autograd = {node.tid: None for node in self.file.nodes if node.name.startswith("autograd::engine::")}
        numbers: dict[int, int] = {}
        for node in self.file.nodes:
            if node.tid not in numbers and not node.name.startswith("[pytorch|profiler|"):
                is_main = node.tid in autograd or 0 not in numbers.values()
                numbers[node.tid] = 0 if is_main else min(max(numbers.values()) + 1, (1 << 15) - 1)
        return numbers

    def _outer_operators(self) -> dict[int, None]:
        """Nodes round other nodes that work on the device: those do the work."""
        parents = {node.id: node.parent for node in self.file.nodes}
        busy: dict[int, None] = {}
        for node in self.file.nodes:
            if node.comm is None and not self._works(node):
                continue
            above = parents.get(node.id, -1)
            while above in parents and above not in busy:
                busy[above] = None
                above = parents[above]
        return busy

    @staticmethod
    def _works(node: EtNode) -> bool:
        is_operator = "::" in node.name and "autograd::" not in node.name and "#" not in node.name
        if not is_operator and not node.is_kernel:
            return False  # functions of autograd, ranges
        name = node.name.rpartition("::")[2]
        return name not in _NO_KERNEL and _device((*node.inputs, *node.outputs)) >= 0

    def _row(self, node: EtNode, device: int, stream: int, signature: int) -> int:
        trace = self.trace
        trace.device.append(device)
        trace.stream.append(stream)
        trace.signature.append(signature)
        trace.issue_ns.append(0)
        trace.start_ns.append(-1)
        trace.end_ns.append(-1)
        trace.thread.append(self.threads.get(node.tid, 0))
        return len(trace.signature) - 1

    def _operator(self, node: EtNode) -> None:
        if not self._works(node):
            kind = "operators that launch no kernel" if "::" in node.name else "ranges and functions without a kernel"
            self.report.leave_out(kind, node.name)
            return
        key = (node.name, specs(node.inputs), specs(node.outputs), node.call)
        if not node.call:
            self.report.guess("operators without a schema: they have no price, and take no time", node.name)
        signature = self.signatures.setdefault(key, len(self.signatures))
        row = self._row(node, _device((*node.inputs, *node.outputs)), _COMPUTE_STREAM, signature)
        self.report.take("operators on a GPU")
        used = [
            self.written.pop(tensor.storage)
            for tensor in (*node.inputs, *node.outputs)
            if tensor.storage in self.written
        ]
        for source in sorted({*used, *self.pending}):
            self.trace.dependent.append(row)
            self.trace.dependency.append(source)
        self.pending.clear()
        self.last_compute = row
        if node.name in _READS:
            self._host_waits(row)

    def _host_waits(self, row: int) -> None:
        thread = self.trace.thread[row]
        append_wait(self.trace, HostWait(0, 0, "stream", row + 1, thread, (row,)), thread)
        self.report.take("waits of the host")

    def _communication(self, node: EtNode) -> None:
        assert node.comm is not None
        tensors = (*node.inputs, *node.outputs)
        device = _device(tensors)
        if device < 0:
            self.report.leave_out("collectives that are not on a GPU", str(node.comm["Collective name"]))
            return
        stream = self.groups.setdefault(str(node.comm.get("Process Group Name", "")), len(self.groups) + 1)
        part = part_from_arguments(len(self.trace.signature), node.comm, stream, self.world_size, self.report)
        if part is None:
            self.report.leave_out("collectives of unknown name", str(node.comm["Collective name"]))
            return
        if not part.has_peer:
            self.report.leave_out(
                "sends and receives whose peer is not in the trace", str(node.comm["Collective name"])
            )
            return
        self.parts.append(part)
        row = self._row(node, device, stream, -len(self.parts))
        if self.last_compute >= 0:
            self.trace.dependent.append(row)
            self.trace.dependency.append(self.last_compute)
        self.written.update({tensor.storage: row for tensor in tensors if tensor.storage >= 0})
        if part.seq >= 0:
            self.by_seq[part.seq] = row


def _device(tensors: tuple[EtTensor, ...]) -> int:
    """Index of the first GPU among them, -1 without."""
    for tensor in tensors:
        if tensor.device.startswith(("cuda", "hip")):
            number = tensor.device.partition(":")[2]
            return int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0
    return -1
