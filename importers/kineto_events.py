"""The events of one Kineto file (PyTorch's profiler), sorted into what an import needs. Nothing is interpreted here.

Categories and arguments as libkineto's output_json.cpp and torch's profiler_kineto.cpp write them; torch 1.8 began them
with capitals, and ROCm uses those of CUDA. Times are absolute nanoseconds: `ts` plus `baseTimeNanoseconds`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from phantora.importers.dtypes import torch_dtype
from phantora.importers.json_stream import clean_text, microseconds_as_ns, whole_number
from phantora.importers.operator_calls import positional_call
from phantora.importers.report import ImportReport

Thread = tuple[Any, Any]  # pid, tid
Tensors = tuple[tuple[str, tuple[int, ...]], ...]  # (dtype, shape), as in SignatureInfo

_WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "memcpy": "memcpy", "gpu_memset": "memset", "memset": "memset"}
_CALLS = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver", "hip"}
_OPS = {"cpu_op", "operator"}
_KNOWN = {
    "ac2g": "arrows from launch to kernel (correlation ids say the same)",
    "async_cpu_to_gpu": "arrows from launch to kernel (correlation ids say the same)",
    "fwdbwd": "arrows from forward to backward",
    "forward_backward": "arrows from forward to backward",
    "gpu_user_annotation": "ranges on the GPU (those of the host are taken)",
    "overhead": "the profiler's own activity",
    "python_function": "Python frames",
    "trace": "spans of the profiler itself",
}
_COMM_ARGUMENTS = (
    "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "In split size", "Rank", "Src Rank", "Dst Rank", "Seq",
)  # fmt: skip
_MAX_TENSORS, _MAX_RANK = 1024, 64
_MAX_NS = 1 << 61  # 73 years; sums of three still fit into 64 bits
_COMM_NAME = re.compile(r"nccl|rccl|mscclkernel|mscclpp", re.IGNORECASE)


@dataclass(slots=True)
class Span:
    """A time on a host thread. kind: op | annotation | call. comm: of a collective. call: as in SignatureInfo."""

    begin_ns: int
    end_ns: int
    thread: Thread
    name: str
    kind: str
    correlation: int = -1
    record_function: int = -1
    external_id: int = -1
    inputs: Tensors = ()
    outputs: Tensors = ()
    comm: dict[str, Any] | None = None
    call: str = ""


@dataclass(slots=True)
class Work:
    """A kernel, memcpy or memset on a device."""

    begin_ns: int
    end_ns: int
    device: int
    stream: int
    name: str
    kind: str
    correlation: int
    bytes: int
    comm: dict[str, Any] | None


@dataclass(slots=True)
class Sync:
    """What CUPTI says of a synchronizing call (category cuda_sync); -1: not known."""

    kind: str
    stream: int
    source_stream: int
    record_correlation: int
    device: int


@dataclass(slots=True)
class KinetoFile:
    """One rank's file."""

    shown: str
    base_ns: int = 0
    rank: int = -1
    world_size: int = 0
    devices: list[str] = field(default_factory=list)
    ops: list[Span] = field(default_factory=list)
    annotations: list[Span] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    syncs: dict[int, Sync] = field(default_factory=dict)
    memory: list[tuple[int, Thread, int, int, int]] = field(
        default_factory=list
    )  # ns, thread, device, allocated, reserved
    instants: list[tuple[int, Thread, str]] = field(default_factory=list)  # user annotations of no length
    autograd_threads: dict[Thread, None] = field(default_factory=dict)
    is_rocm: bool = False


@lru_cache(maxsize=65536)
def is_communication(name: str) -> bool:
    """Whether a kernel of this name is NCCL's (or RCCL's)."""
    return bool(_COMM_NAME.search(name, 0, 120))


class KinetoReader:
    """Takes the members of a document one after another."""

    def __init__(self, shown: str, report: ImportReport) -> None:
        self.file = KinetoFile(shown)
        self._report = report
        self._names: dict[str, str] = {}
        self._tensors: dict[str, Tensors] = {}
        self._handlers = {
            **dict.fromkeys(_WORK, self._work), **dict.fromkeys(_CALLS, self._call), **dict.fromkeys(_OPS, self._op),
            "user_annotation": self._annotation, "cuda_sync": self._sync, "cpu_instant_event": self._leave_out,
        }  # fmt: skip

    def member(self, key: str, value: Any) -> None:
        """A member of the document that is no event."""
        if key == "baseTimeNanoseconds":
            self.file.base_ns = whole_number(value, 0, 1 << 61) or 0
        elif key == "distributedInfo" and isinstance(value, dict):
            rank = whole_number(value.get("rank"), 0, 1 << 24)
            self.file.rank = -1 if rank is None else rank
            self.file.world_size = whole_number(value.get("world_size"), 0, 1 << 24) or 0
        elif key == "deviceProperties" and isinstance(value, list):
            self.file.devices = [clean_text(d.get("name", ""))[:200] for d in value[:1024] if isinstance(d, dict)]

    def event(self, event: Any) -> None:
        """One member of traceEvents."""
        if not isinstance(event, dict):
            self._report.leave_out("events that are not objects", str(event))
            return
        phase, category = event.get("ph"), event.get("cat")
        if phase == "M":
            self._metadata(event)
            return
        name = category.lower() if isinstance(category, str) else ""
        if name in _KNOWN:
            self._report.leave_out(_KNOWN[name])
        elif event.get("name") == "[memory]":
            self._memory(event)
        elif phase == "X" and name in self._handlers:
            self._handlers[name](event, name)
        elif phase == "i" and name == "user_annotation":
            self._instant(event)
        elif phase == "i":
            self._report.leave_out("instants of the profiler", clean_text(event.get("name")))
        else:
            what = f"events of phase {str(phase)[:8]}, category {clean_text(category)[:40]}, which are not known here"
            self._report.leave_out(what, clean_text(event.get("name")))

    def finish(self) -> KinetoFile:
        """The file, its times absolute."""
        base, file = self.file.base_ns, self.file
        for spans in (file.ops, file.annotations, file.calls, file.work):
            for span in spans:
                span.begin_ns += base  # type: ignore[attr-defined]
                span.end_ns += base  # type: ignore[attr-defined]
        file.instants = [(ns + base, thread, name) for ns, thread, name in file.instants]
        file.memory = [(ns + base, *rest) for ns, *rest in file.memory]  # type: ignore[misc]
        return file

    # events

    def _times(self, event: dict[str, Any]) -> tuple[int, int] | None:
        begin, length = microseconds_as_ns(event.get("ts")), microseconds_as_ns(event.get("dur"))
        if begin is None or length is None or not (abs(begin) < _MAX_NS and 0 <= length < _MAX_NS >> 1):
            self._report.leave_out("events whose time cannot be read", clean_text(event.get("name")))
            return None
        return begin, begin + length

    def _span(self, event: dict[str, Any], kind: str) -> tuple[Span, dict[str, Any]] | None:
        times, pid, tid = self._times(event), event.get("pid"), event.get("tid")
        if times is None:
            return None
        if not isinstance(pid, (int, str)) or not isinstance(tid, (int, str)):
            self._report.leave_out("events without a thread", clean_text(event.get("name")))
            return None
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        return Span(*times, (pid, tid), self._name(event), kind), args

    def _name(self, event: dict[str, Any]) -> str:
        text = clean_text(event.get("name", ""))
        return self._names.setdefault(text, text)

    def _op(self, event: dict[str, Any], _: str) -> None:
        if found := self._span(event, "op"):
            span, args = found
            self._describe(span, args)
            self.file.ops.append(span)
            if span.name.startswith("autograd::engine::"):
                self.file.autograd_threads[span.thread] = None

    def _annotation(self, event: dict[str, Any], _: str) -> None:
        if found := self._span(event, "annotation"):
            self._describe(*found)
            self.file.annotations.append(found[0])

    def _instant(self, event: dict[str, Any]) -> None:
        ns, pid, tid = microseconds_as_ns(event.get("ts")), event.get("pid"), event.get("tid")
        if ns is None or abs(ns) >= _MAX_NS or not isinstance(pid, (int, str)) or not isinstance(tid, (int, str)):
            self._report.leave_out("instants without a time or thread", clean_text(event.get("name")))
        else:
            self.file.instants.append((ns, (pid, tid), self._name(event)))

    def _describe(self, span: Span, args: dict[str, Any]) -> None:
        span.record_function = whole_number(args.get("Record function id"), 0) or -1
        external = whole_number(args.get("External id"), 0)
        span.external_id = -1 if external is None else external
        if "Input Dims" in args or "Input dims" in args:
            span.inputs = self._inputs(args.get("Input Dims", args.get("Input dims")), args.get("Input type"))
        if "Collective name" in args:
            span.comm = _comm_arguments(args)
        elif span.kind == "op" and span.inputs:
            call = positional_call(span.name, args)
            span.call = self._names.setdefault(call, call)

    def _inputs(self, dims: Any, types: Any) -> Tensors:
        key = f"{dims}{types}"
        known = self._tensors.get(key)
        if known is None:
            known = self._tensors[key] = tensors(dims, types)
        return known

    def _call(self, event: dict[str, Any], _: str) -> None:
        if found := self._span(event, "call"):
            span, args = found
            correlation = whole_number(args.get("correlation"), 0)
            span.correlation = -1 if correlation is None else correlation
            self.file.calls.append(span)
            self.file.is_rocm = self.file.is_rocm or span.name.startswith("hip")

    def _work(self, event: dict[str, Any], category: str) -> None:
        times, args = self._times(event), event.get("args")
        if times is None:
            return
        args = args if isinstance(args, dict) else {}
        device = whole_number(args.get("device", event.get("pid")), 0, (1 << 15) - 1)
        stream = whole_number(args.get("stream", event.get("tid")), 0)
        if device is None or stream is None:
            self._report.leave_out("device work without a device or stream", clean_text(event.get("name")))
            return
        correlation = whole_number(args.get("correlation"), 0)
        num_bytes = whole_number(args.get("bytes", args.get("Bytes")), 0) or 0
        comm = _comm_arguments(args) if "Collective name" in args else None
        correlation = -1 if correlation is None else correlation
        self.file.work.append(
            Work(*times, device, stream, self._name(event), _WORK[category], correlation, num_bytes, comm)
        )

    def _sync(self, event: dict[str, Any], _: str) -> None:
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        correlation = whole_number(args.get("correlation"), 0)
        if correlation is None:
            self._report.leave_out("synchronization records without a correlation id", clean_text(event.get("name")))
            return
        names = ("stream", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "device")
        numbers = [whole_number(args.get(name), 0) for name in names]
        kind = clean_text(args.get("cuda_sync_kind", event.get("name", "")))
        self.file.syncs[correlation] = Sync(kind, *(-1 if number is None else number for number in numbers))

    def _memory(self, event: dict[str, Any]) -> None:
        args, ns = event.get("args"), microseconds_as_ns(event.get("ts"))
        args = args if isinstance(args, dict) else {}
        device = whole_number(args.get("Device Id"), 0, (1 << 15) - 1)
        allocated, reserved = (whole_number(args.get(name), 0) for name in ("Total Allocated", "Total Reserved"))
        pid, tid = event.get("pid"), event.get("tid")
        if args.get("Device Type") == 0 or device is None:
            self._report.leave_out("allocations of the CPU")
        elif (
            ns is None
            or abs(ns) >= _MAX_NS
            or allocated is None
            or not isinstance(pid, (int, str))
            or not isinstance(tid, (int, str))
        ):
            self._report.leave_out("allocations that cannot be read")
        else:
            self.file.memory.append((ns, (pid, tid), device, allocated, reserved or 0))

    def _leave_out(self, event: dict[str, Any], _: str) -> None:
        self._report.leave_out("instants of the profiler", clean_text(event.get("name")))

    def _metadata(self, event: dict[str, Any]) -> None:
        args, pid, tid = event.get("args"), event.get("pid"), event.get("tid")
        name = args.get("name") if isinstance(args, dict) else None
        is_thread = event.get("name") == "thread_name" and isinstance(pid, (int, str)) and isinstance(tid, (int, str))
        if is_thread and isinstance(name, str) and "pt_autograd" in name:
            self.file.autograd_threads[pid, tid] = None


def tensors(dims: Any, types: Any) -> Tensors:
    """(dtype, shape) of the tensors among the arguments of an operator: lists are taken apart, scalars left out."""
    found: list[tuple[str, tuple[int, ...]]] = []
    if not isinstance(dims, list) or not isinstance(types, list):
        return ()
    for shape, kind in zip(dims[:_MAX_TENSORS], types):
        if not isinstance(shape, list) or kind in ("", "Scalar", "ScalarList") or not isinstance(kind, str):
            continue
        is_list = kind.startswith("TensorList") or any(isinstance(size, list) for size in shape)
        for one in shape[:_MAX_TENSORS] if is_list else [shape]:
            sizes = one if isinstance(one, list) else [None]
            numbers = [whole_number(size, 0) for size in sizes[: _MAX_RANK + 1]]
            if len(numbers) <= _MAX_RANK and None not in numbers:
                found.append((torch_dtype(kind), tuple(numbers)))  # type: ignore[arg-type]
    return tuple(found[:_MAX_TENSORS])


def _comm_arguments(args: dict[str, Any]) -> dict[str, Any]:
    return {name: args[name] for name in _COMM_ARGUMENTS if name in args}
