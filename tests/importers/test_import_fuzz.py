"""20,000 mutated files for each importer of JSON: an import, or a UserError; no hang, no flood of memory."""

from __future__ import annotations

import copy
import gzip
import io
import itertools
import json
import random
import resource
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import et_samples as et
import pytest
from kineto_samples import AUTOGRAD, annotation, call, collective, copy as memcpy, document, launched, op, sync

from phantora.errors import UserError
from phantora.importers import kineto, pytorch_et
from phantora.importers.kineto_events import KinetoFile
from phantora.importers.pytorch_et_file import EtFile
from phantora.importers.report import ImportReport
from phantora.importers.trace_reader import read_stream
from phantora.trace.model import Run

NUM_FILES = 20_000
_EXPORT_EVERY = 400
_HANG_S = 30
_TURNS = itertools.count()
_MAX_GROWTH_KB = 400 << 10
_ODD: list[Any] = [
    None, True, -1, 0, 1, 3.5, 1 << 31, 1 << 62, -(1 << 63), 1 << 64, 1e308, 10**40, "", "x", "-", "9" * 30, "nan", [],
    {}, [[]], [1, [2, [3]]], {"a": {"b": []}}, "\ud800", "Tensor(float)", "GenericList[Tensor(float)]",
    "[0, 1, ..., 9]", "allreduce",
    "send", "recv", "cudaStreamWaitEvent", "cuda:999999", "cudaMemcpy", 1e-7,
]  # fmt: skip


def _kineto_sample() -> dict[str, Any]:
    dims = {
        "Input Dims": [[4, 8], [8, 2], [], [[2], [3]]],
        "Input type": ["float", "c10::Half", "Scalar", "TensorList"],
    }
    events = [annotation("ProfilerStep#1", 0, 400), op("aten::mm", 1, 20, **dims, **{"Record function id": 3})]
    events += launched("void gemm", 5, 12, 30, 1) + [op("autograd::engine::evaluate_function: X", 30, 60, AUTOGRAD)]
    events += [call("cudaEventRecord", 40, 1, 2, AUTOGRAD), call("cudaStreamWaitEvent", 42, 1, 3, AUTOGRAD)]
    events += [sync("Stream Wait Event", 42, 1, 3, stream=20, wait_on_stream=7, wait_on_cuda_event_record_corr_id=2)]
    events += [op("record_param_comms", 44, 20, AUTOGRAD), call("cudaStreamWaitEvent", 45, 1, 4, AUTOGRAD)]
    events += launched(
        "ncclDevKernel_AllReduce", 48, 55, 40, 5, stream=20, tid=AUTOGRAD, **collective("allreduce", 1, [0, 1], 64)
    )
    events += [call("cudaMemcpyAsync", 100, 60, 6), memcpy("Memcpy DtoH (Device -> Pageable)", 130, 20, 6, bytes=4)]
    events += [annotation("nccl:recv", 170, 20), *launched("ncclKernel_SendRecv", 175, 180, 9, 7, stream=21)]
    events += [
        call("cudaStreamSynchronize", 200, 30, 8),
        call("cudaDeviceSynchronize", 240, 9, 9),
        call("cudaFree", 260, 9, 10),
    ]
    events += [
        {"ph": "i", "name": "[memory]", "pid": 7, "tid": 7, "ts": 3, "args": {"Device Id": 0, "Total Allocated": 5}}
    ]
    events += [{"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "thread 8 (pt_autograd_0)"}}]
    return document(events, 0, 2, baseTimeNanoseconds=1000, deviceProperties=[{"name": "NVIDIA H200"}])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    found, stack = [], [value]
    while stack:
        one = stack.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], (dict, list)):
                stack.append(one[key])
    return found


def _structural(sample: Any, random_: random.Random) -> bytes:
    changed = copy.deepcopy(sample)
    for _ in range(random_.choice((1, 1, 2, 4, 8))):
        places = _places(changed)
        holder, key = random_.choice(places)
        other_holder, other_key = random_.choice(places)
        what = random_.randrange(6)
        if what == 0:
            del holder[key]
        elif what == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif what == 2:
            holder[key] = copy.deepcopy(other_holder[other_key]) if len(json.dumps(changed)) < 60_000 else 0
        elif what == 3 and isinstance(holder[key], (int, float)):
            holder[key] = random_.choice((holder[key] + random_.randrange(-50, 50), -holder[key], holder[key] * 1000))
        else:
            holder[key] = copy.deepcopy(random_.choice(_ODD))
    return json.dumps(changed).encode("utf-8", "surrogatepass")


def _textual(text: bytes, random_: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(random_.choice((1, 1, 2, 5))):
        at = random_.randrange(len(data) or 1)
        what = random_.randrange(5)
        if what == 0:
            data[at : at + 1] = bytes([random_.randrange(256)])
        elif what == 1:
            del data[at : at + random_.randrange(1, 40)]
        elif what == 2:
            data[at:at] = random_.choice(
                (b"[" * 3000, b'{"a":' * 2000, b"9" * 5000, b"\x00", b'"', b"\\u", b"e9", b"-", b"NaN", b"Infinity")
            )
        elif what == 3:
            del data[at:]
        else:
            data[at:at] = data[at : at + random_.randrange(1, 200)]
    return bytes(data)


def _files(sample: dict[str, Any], seed: int) -> Iterator[bytes]:
    random_ = random.Random(seed)
    text = json.dumps(sample).encode()
    for number in range(NUM_FILES):
        yield _textual(text, random_) if number % 3 == 0 else _structural(sample, random_)


def _kineto_run(found: KinetoFile | EtFile, report: ImportReport) -> Run:
    if isinstance(found, EtFile):
        return pytorch_et.run_of_nodes([found], report)
    return kineto.run_of([found], [], report)


def _linked_run(found: KinetoFile | EtFile, report: ImportReport) -> Run:
    """Every fourth with a Kineto trace of the same process, so that linking is met too."""
    if not isinstance(found, EtFile):
        return kineto.run_of([found], [], report)
    run = pytorch_et.run_of_nodes([found], report)
    if next(_TURNS) % 4:
        return run
    text = json.dumps(_kineto_sample()).encode()
    other = read_stream("kineto", io.BytesIO(text), report)
    assert isinstance(other, KinetoFile)
    kineto.run_of([other], [found], report)
    return run


@pytest.fixture
def hang() -> Iterator[Callable[[], None]]:
    """Call it at the beginning of each case: one that takes _HANG_S fails."""

    def fail(signum: int, frame: FrameType | None) -> None:
        raise AssertionError(f"one file took more than {_HANG_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    yield lambda: signal.alarm(_HANG_S) and None
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "sample,make,seed",
    [
        (_kineto_sample(), _kineto_run, 1),
        (et.document(et.step(et.nested), "1.1.1-chakra.0.0.4"), _linked_run, 2),
        (et.document(et.step(et.flat)), _kineto_run, 3),
    ],
    ids=["kineto", "pytorch-et nested", "pytorch-et flat"],
)
def test_mutated_files(
    sample: dict[str, Any], make: Callable[..., Run], seed: int, hang: Callable[[], None], tmp_path: Path
) -> None:
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_read = 0
    for number, data in enumerate(_files(sample, seed)):
        hang()
        report = ImportReport()
        try:
            run = make(read_stream("mutated.json", io.BytesIO(data), report), report)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        num_read += 1
        _check(run, report)
        if num_read % _EXPORT_EVERY == 0:
            _export(run, tmp_path)
    assert NUM_FILES * 0.1 < num_read < NUM_FILES * 0.95
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_kb < _MAX_GROWTH_KB


def _check(run: Run, report: ImportReport) -> None:
    report.lines()
    for trace in run.ranks:
        num_rows = len(trace.signature)
        assert num_rows == len(trace.issue_ns) == len(trace.start_ns) == len(trace.end_ns) == len(trace.thread)
        assert min(trace.issue_ns, default=0) >= 0 and min(trace.memory_ns, default=0) >= 0
        assert all(0 <= b < a < num_rows for a, b in zip(trace.dependent, trace.dependency))
        assert all(0 <= row < position for rows, position in zip(trace.wait_rows, trace.wait_position) for row in rows)
        for signature in trace.signature:
            assert signature < len(run.signatures)
            assert signature >= 0 or trace.work_collectives[-1 - signature]
    assert all(c.bytes >= 0 and 0 <= c.group < len(run.groups) and c.root < len(c.ranks) for c in run.collectives)


def _export(run: Run, folder: Path) -> None:
    from phantora.cluster import load_cluster
    from phantora.exporters.chakra import write_chakra
    from phantora.exporters.perfetto import write_perfetto
    from phantora.report.summary import write_summary

    run.cluster = load_cluster("dgx-h100")
    write_summary(run, folder)
    write_chakra(run, folder)
    write_perfetto(run, folder / "trace.pftrace")


def test_mutated_archives(tmp_path: Path, hang: Callable[[], None]) -> None:
    """.gz and .tar.gz: what cannot be unpacked is an error with the file's name."""
    text = json.dumps(_kineto_sample()).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in ("a/rank0.json", "a/._rank0.json", "a/notes.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    plain = gzip.decompress(buffer.getvalue())
    random_ = random.Random(4)
    path = tmp_path / "trace"
    for number in range(600):
        hang()
        if number % 3 == 0:
            data = _textual(buffer.getvalue(), random_)
        elif number % 3 == 1:
            data = _textual(plain, random_)
        else:
            data = _textual(gzip.compress(text), random_)
        path.write_bytes(data)
        try:
            kineto.read([path])
        except UserError as error:
            assert str(path) in str(error)
