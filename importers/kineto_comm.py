"""What a communication kernel does: from its own arguments, else from the c10d record, range or operator round it.

Names of collectives as ProcessGroupNCCL writes them; arguments as in torch's ParamCommsUtils.hpp and util_kineto.cpp.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from phantora.importers.json_stream import clean_text, whole_number
from phantora.importers.dtypes import torch_dtype
from phantora.importers.kineto_events import Span, Tensors
from phantora.importers.kineto_rows import Row
from phantora.importers.report import ImportReport

DTYPE_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2,
    "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "complex128": 16,
}  # fmt: skip
_KINDS = (
    ("reduce_scatter", re.compile(r"reduce_?scatter")),
    ("all_reduce", re.compile(r"all_?reduce")),
    ("all_gather", re.compile(r"all_?gather")),
    ("all_to_all", re.compile(r"all_?to_?all")),
    ("broadcast", re.compile(r"broadcast")),
    ("barrier", re.compile(r"barrier")),
    ("gather", re.compile(r"gather")),
    ("scatter", re.compile(r"scatter")),
    ("send", re.compile(r"^i?send$|^i?send_$")),
    ("recv", re.compile(r"^i?recv$|^i?recv_$|recv_any")),
    ("reduce", re.compile(r"reduce")),
)
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_NUMBERS = re.compile(r"\d{1,9}")
_MAX_GROUP = 1 << 20
_MAX_RANKS_TEXT = 1 << 22
_KERNEL_TYPE = re.compile(
    r"_(int8_t|uint8_t|int32_t|uint32_t|int64_t|uint64_t|float|double|half|i8|u8|i32|i64|f16|f32|f64|bf16)\b"
)
_KERNEL_DTYPES = {
    "int8_t": "int8", "uint8_t": "uint8", "int32_t": "int32", "int64_t": "int64", "float": "float32",
    "double": "float64", "half": "float16", "i8": "int8", "u8": "uint8", "i32": "int32", "i64": "int64",
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "uint32_t": "int32", "uint64_t": "int64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommPart:
    """One rank's part of a collective. kind: as CollectiveInfo.kind, but send or recv.

    ranks: of the group in its order (() when not known); group: its name; seq: its number in the group (-1: not known);
    peer: the other global rank of a send or recv (-1: not known); stream: position of its stream among the rank's
    streams with communication; splits: of an all-to-all, bytes to each rank of the group; end_ns: by the
    rank's clock, -1 when not known.
    """

    row: int
    kind: str
    bytes: int
    dtype: str
    group: str
    ranks: tuple[int, ...]
    seq: int
    root: int
    peer: int
    stream: int
    splits: tuple[int, ...] = ()
    end_ns: int = -1

    @property
    def has_peer(self) -> bool:
        """Whether it is known with whom it is done: all but sends and receives without a peer."""
        return self.kind not in ("send", "recv") or self.peer >= 0


def kind_of(name: str) -> str:
    """all_reduce, ..., send, recv; '' when the name says nothing."""
    plain = name.lower().removeprefix("nccl:").rpartition("::")[2].strip("_")
    return next((kind for kind, pattern in _KINDS if pattern.search(plain)), "")


def comm_part(number: int, row: Row, stream: int, world_size: int, report: ImportReport) -> CommPart:
    """What the kernel of `row` (number `number`) does."""
    return replace(_part(number, row, stream, world_size, report), end_ns=row.work.end_ns)


def _part(number: int, row: Row, stream: int, world_size: int, report: ImportReport) -> CommPart:
    arguments, span = _arguments(row), _describing(row)
    if arguments is not None:
        part = part_from_arguments(number, arguments, stream, world_size, report)
        if part is not None:
            return part
    if span is not None:
        report.guess(
            "collectives without arguments: kind and size from the range or operator round their launch", span.name
        )
        return _from_span(number, span, row, stream, world_size, report)
    kind, dtype = _from_kernel(row.work.name)
    report.guess("collectives of which only the kernel's name is known: size 0", row.work.name)
    return CommPart(number, kind, 0, dtype, f"stream {stream}", (), -1, 0, -1, stream)


def _arguments(row: Row) -> dict[str, Any] | None:
    if row.work.comm is not None:
        return row.work.comm
    context = row.context
    return next((span.comm for span in (context.comm, context.op) if span is not None and span.comm), None)


def _describing(row: Row) -> Span | None:
    context = row.context
    for span in (context.collective, context.op):
        if span is not None and kind_of(span.name) and span.name != "record_param_comms":
            return span
    return None


def part_from_arguments(
    number: int, args: dict[str, Any], stream: int, world_size: int, report: ImportReport
) -> CommPart | None:
    """What these arguments (under Kineto's names) describe; None when the collective has no name that is known."""
    name = clean_text(args["Collective name"])
    kind = kind_of(name)
    if not kind:
        report.guess("collectives of unknown name", name)
        return None
    size = whole_number(args.get("Group size"), 1, _MAX_GROUP) or 0
    ranks = _ranks(args.get("Process Group Ranks"), size, world_size, report)
    size = size or len(ranks) or max(world_size, 1)
    dtype = torch_dtype(args.get("dtype"))
    sent, received = (whole_number(args.get(f"{side} msg nelems"), 0, 1 << 50) or 0 for side in ("In", "Out"))
    if dtype not in DTYPE_BYTES and kind != "barrier":
        report.guess("collectives of a dtype that is not known: one byte an element", clean_text(args.get("dtype")))
    num_bytes = message_elements(kind, sent, received, size) * DTYPE_BYTES.get(dtype, 1)
    rank = whole_number(args.get("Rank"), 0, _MAX_GROUP)
    peer = whole_number(args.get("Dst Rank" if kind == "send" else "Src Rank"), 0, _MAX_GROUP)
    if peer is None and kind in ("send", "recv") and rank is not None:
        peer = ranks[rank] if rank < len(ranks) else None
    seq = whole_number(args.get("Seq"), 0)
    group = clean_text(args.get("Process Group Name", ""))[:200]
    root = rank if rank is not None and kind in _ROOTED and rank < size else 0
    return CommPart(
        number,
        kind,
        num_bytes,
        dtype,
        group,
        ranks,
        -1 if seq is None else seq,
        root,
        -1 if peer is None else peer,
        stream,
        _splits(args.get("In split size"), size, num_bytes) if kind == "all_to_all" else (),
    )


def _splits(value: Any, size: int, num_bytes: int) -> tuple[int, ...]:
    """Bytes for each rank, from the split sizes (rows of the first dimension); () when not given, or cut off."""
    if isinstance(value, str):
        value = [] if "..." in value or len(value) > _MAX_RANKS_TEXT else _NUMBERS.findall(value)
    rows = [whole_number(item, 0, 1 << 40) or 0 for item in value] if isinstance(value, list) else []
    total = sum(rows)
    if len(rows) != size or not total or num_bytes % total:
        return ()
    return tuple(num * (num_bytes // total) for num in rows)


def message_elements(kind: str, sent: int, received: int, size: int) -> int:
    """Elements of the message as nccl-tests counts them (CommOperation.bytes), from one rank's input and output."""
    if kind == "barrier":
        return 0
    if kind == "all_gather":
        return max(received, sent * size)
    if kind == "gather":
        return sent * size
    if kind in ("reduce_scatter", "scatter"):
        return max(sent, received * size)
    return sent or received


def _ranks(value: Any, size: int, world_size: int, report: ImportReport) -> tuple[int, ...]:
    """The global ranks of a group. The profiler cuts long lists ('[0, 1, ..., 29, ...]')."""
    if isinstance(value, list):
        numbers = [whole_number(item, 0, _MAX_GROUP) for item in value]
        listed = tuple(number for number in numbers if number is not None)
    elif isinstance(value, str) and len(value) < _MAX_RANKS_TEXT:
        listed = tuple(map(int, _NUMBERS.findall(value)))
    else:
        listed = ()
    listed = tuple(dict.fromkeys(listed))
    if not listed or len(listed) == size or not size:
        return listed
    if size == world_size:
        return tuple(range(world_size))
    step = listed[1] - listed[0] if len(listed) > 1 else 0
    if step > 0 and len(listed) > 2 and all(b - a == step for a, b in zip(listed, listed[1:-1])):
        report.guess("groups whose list of ranks is cut off: continued with the same step", str(value))
        return tuple(range(listed[0], listed[0] + step * size, step))
    report.guess("groups whose list of ranks is cut off: known ranks alone", str(value))
    return listed


def _from_span(number: int, span: Span, row: Row, stream: int, world_size: int, report: ImportReport) -> CommPart:
    kind = kind_of(span.name)
    inputs = span.inputs or (row.context.comm.inputs if row.context.comm is not None else ())
    if span.name.startswith("c10d::") and kind in ("all_gather", "reduce_scatter", "all_to_all") and len(inputs) > 1:
        inputs = inputs[1:2]  # these operators name the output first
    sent = _elements(inputs)
    dtype = inputs[0][0] if inputs else "unknown"
    num_bytes = message_elements(kind, sent, 0, max(world_size, 1)) * DTYPE_BYTES.get(dtype, 1)
    return CommPart(number, kind, num_bytes, dtype, f"stream {stream}", (), -1, 0, -1, stream)


def _elements(inputs: Tensors) -> int:
    total = 0
    for _, shape in inputs:
        numel = 1
        for size in shape:
            numel = min(numel * size, 1 << 50)
        total += numel
    return min(total, 1 << 50)


def _from_kernel(name: str) -> tuple[str, str]:
    found = _KERNEL_TYPE.search(name, 0, 400)
    dtype = _KERNEL_DTYPES[found[1]] if found else "unknown"
    head = name.split("(", 1)[0].replace("SendRecv", "AllToAll")
    return kind_of(head.replace("ncclKernel", "").replace("ncclDevKernel", "")) or "all_reduce", dtype
