"""Real traces of public test suites and of an H200: counts and times against figures taken from the JSON directly."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from plain_replay import PlainReplay

from phantora.importers import kineto
from phantora.importers.report import ImportReport
from phantora.trace.model import RankTrace, Run

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "reference"
DLRM = ("traces/param_dlrm_kineto.tar.gz",)
DLRM_ET = ("traces/param_dlrm_kineto.tar.gz", "traces/param_dlrm_pytorch_et.tar.gz")
GPT2 = ("h200/traces/gpt2-124m-b8-s1024.kineto.json.gz",)
RESNET = ("h200/traces/resnet50-b64-fp32.kineto.json.gz", "h200/traces/resnet50-b64-fp32.et.json.gz")
SAMPLED = ("traces/hta_trace_filter_sampled_rank-0.json.gz", "traces/hta_trace_filter_sampled_rank-1.json.gz")
ROCM = ("traces/hta_amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz",)
EVENTS = ("traces/hta_critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz",)
ADD = (
    "traces/hta_execution_trace_benchmark_simple_add_trace.json.gz",
    "traces/hta_execution_trace_benchmark_simple_add_et.json.gz",
)
ALL = [DLRM, DLRM_ET, GPT2, RESNET, SAMPLED, ROCM, EVENTS, ADD]

pytestmark = pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="the traces in shared/reference are not here")


@lru_cache
def _run(names: tuple[str, ...]) -> tuple[Run, ImportReport]:
    return kineto.read([SHARED / name for name in names])


@lru_cache
def _documents(names: tuple[str, ...]) -> dict[int, dict[str, Any]]:
    """Rank -> document, read whole."""
    texts = []
    for name in names:
        if name.endswith(".tar.gz"):
            with tarfile.open(SHARED / name) as archive:
                contents = [archive.extractfile(member) for member in archive if member.isfile()]
                texts += [content.read() for content in contents if content is not None]
        else:
            texts.append(gzip.open(SHARED / name).read())
    documents = [json.load(io.BytesIO(text)) for text in texts]
    return {d.get("distributedInfo", {}).get("rank", 0): d for d in documents if "traceEvents" in d}


def _work(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        e for e in document["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and e["ph"] == "X"
    ]


def _union_us(spans: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


@pytest.mark.parametrize("names", ALL)
def test_all_device_work_is_there(names: tuple[str, ...]) -> None:
    run, _ = _run(names)
    documents = _documents(names)
    assert sorted(documents) == [trace.rank for trace in run.ranks]
    for trace in run.ranks:
        work = _work(documents[trace.rank])
        assert len(trace.signature) == len(work) > 0
        assert {(d, s) for d, s in zip(trace.device, trace.stream)} == {
            (e["args"]["device"], e["args"]["stream"]) for e in work
        }
        busy = _union_us([(e["ts"], e["ts"] + e["dur"]) for e in work])
        ours = _union_us([(b / 1000, e / 1000) for b, e in zip(trace.start_ns, trace.end_ns)])
        assert ours == pytest.approx(busy, rel=1e-4, abs=0.1)


@pytest.mark.parametrize("names", ALL)
def test_launches_and_kernels_are_the_same_pairs(names: tuple[str, ...]) -> None:
    """The delay from call to start, summed over pairs of one correlation id; long calls count from their end."""
    run, _ = _run(names)
    for trace in run.ranks:
        events = _documents(names)[trace.rank]["traceEvents"]
        calls = {
            e["args"]["correlation"]: e
            for e in events
            if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e["args"]
        }
        delays = []
        for event in _work({"traceEvents": events}):
            launch = calls.get(event["args"]["correlation"])
            if launch is not None:
                begin = (
                    launch["ts"]
                    if launch["dur"] <= 100
                    else max(launch["ts"], min(launch["ts"] + launch["dur"], event["ts"]))
                )
                delays.append(max(0, event["ts"] - begin))
        ours = sum(start - issue for start, issue in zip(trace.start_ns, trace.issue_ns)) / 1000
        assert ours == pytest.approx(sum(delays), rel=1e-3, abs=0.1 * len(delays))


@pytest.mark.parametrize("names", ALL)
def test_rows_could_have_happened(names: tuple[str, ...]) -> None:
    for trace in _run(names)[0].ranks:
        assert list(trace.issue_ns) == sorted(trace.issue_ns) and min(trace.issue_ns) >= 0
        assert all(issue <= start <= end for issue, start, end in zip(trace.issue_ns, trace.start_ns, trace.end_ns))
        for dependent, dependency in zip(trace.dependent, trace.dependency):
            assert dependency < dependent and trace.end_ns[dependency] <= trace.start_ns[dependent] + 2000
        for begin, end, position, rows in zip(
            trace.wait_begin_ns, trace.wait_end_ns, trace.wait_position, trace.wait_rows
        ):
            assert begin <= end and rows and max(rows) < position <= len(trace.signature)
            assert all(trace.end_ns[row] <= end + 2000 for row in rows)
        assert _starts_in_order(trace)


def _starts_in_order(trace: RankTrace) -> bool:
    last: dict[tuple[int, int], int] = {}
    for key, start in zip(zip(trace.device, trace.stream), trace.start_ns):
        if start < last.get(key, start):
            return False
        last[key] = start
    return True


@pytest.mark.parametrize("names", ALL)
def test_a_plain_replay_takes_the_measured_time(names: tuple[str, ...]) -> None:
    run, _ = _run(names)
    assert PlainReplay(run).run_all() == pytest.approx(run.virtual_ns, rel=0.005)


def test_dlrm_collectives() -> None:
    """8 on each of 8 ranks; sizes from the ranges round them, groups from nowhere."""
    run, report = _run(DLRM)
    documents = _documents(DLRM)
    assert len(run.collectives) == 8 and run.world_size == 8
    assert [trace.rank for trace in run.ranks] == list(range(8))
    ends: dict[int, list[int]] = {}
    for trace in run.ranks:
        nccl = [e for e in _work(documents[trace.rank]) if e["name"].startswith("nccl")]
        assert len(nccl) == 8 == len(trace.work_collectives)
        for row, signature in enumerate(trace.signature):
            if signature < 0:
                ends.setdefault(trace.work_collectives[-1 - signature][0], []).append(trace.end_ns[row])
    assert all(len(members) == 8 and max(members) - min(members) <= 10_000 for members in ends.values())
    kinds = {(c.kind, c.bytes, c.dtype) for c in run.collectives if c.kind == "all_reduce"}
    assert kinds == {("all_reduce", 4 * n, "float32") for n in (394241, 226960, 112)}
    assert "ranks share a clock" in " ".join(run.notes)
    assert not report.broken


def test_dlrm_links_with_its_execution_traces() -> None:
    run, report = _run(DLRM_ET)
    plain, _ = _run(DLRM)
    assert report.taken["operators linked with an execution trace"].count >= 8 * 1670
    assert [list(t.start_ns) for t in run.ranks] == [list(t.start_ns) for t in plain.ranks]
    assert [(c.kind, c.bytes) for c in run.collectives] == [(c.kind, c.bytes) for c in plain.collectives]
    assert not any(what.startswith("collectives without arguments") for what in report.guessed)
    uneven = [c.split_bytes for c in run.collectives if c.split_bytes is not None]
    assert uneven and all(len(rows) == 8 and all(len(row) == 8 for row in rows) for rows in uneven)
    named = [s for s in run.signatures if s.name.startswith("aten::")]
    assert sum(bool(s.outputs) for s in named) > 0.95 * len(named)
    assert sum(bool(s.call) for s in named) > 0.7 * len(named)


def test_h200_traces() -> None:
    run, _ = _run(GPT2)
    document = _documents(GPT2)[0]
    waits = [e for e in document["traceEvents"] if e.get("name") in ("cudaStreamSynchronize", "cudaDeviceSynchronize")]
    assert len(waits) == 4 == len(run.ranks[0].wait_rows)
    assert sum(signature < 0 for signature in run.ranks[0].signature) == 0
    matrix = [s for s in run.signatures if s.name == "aten::mm"]
    assert matrix and all(
        s.family == "gemm" and len(s.inputs) == 2 and len(s.inputs[0][1]) == 2 for s in matrix if s.call
    )
    resnet, report = _run(RESNET)
    assert report.taken["operators linked with an execution trace"].count == 2692
    assert any(s.name == "aten::cudnn_convolution" and s.outputs and '"stride"' in s.call for s in resnet.signatures)


def test_the_event_of_the_synchronization_trace() -> None:
    """Stream 24 waits for an event on stream 20: the third product depends on the first."""
    run, report = _run(EVENTS)
    trace = run.ranks[0]
    pairs = [(trace.stream[a], trace.stream[b]) for a, b in zip(trace.dependent, trace.dependency)]
    assert pairs == [(24, 20)]
    assert trace.dependency[0] == max(row for row, stream in enumerate(trace.stream) if stream == 20)
    assert trace.dependent[0] == min(row for row, stream in enumerate(trace.stream) if stream == 24)
    assert not report.guessed and not report.broken
    assert trace.wait_reason == ["device"] and len(trace.wait_rows[0]) == 3


def test_the_rocm_trace() -> None:
    run, report = _run(ROCM)
    trace = run.ranks[0]
    assert trace.wait_reason == ["copy", "copy", "device"]
    assert {run.signatures[s].name for s in trace.signature} >= {"aten::addmm", "Memcpy HtoD (Host -> Device)"}
    assert "ProfilerStep#1" in trace.mark_name and not report.broken


def test_two_of_128_ranks_with_samples_of_their_work() -> None:
    run, report = _run(SAMPLED)
    assert run.world_size == len(run.ranks) == 2 and not run.collectives
    assert report.guessed["collectives whose other ranks have no trace: as work of their duration"].count == 20
    assert report.broken["collectives that ranks of the import lack"].count > 0
    assert any("2 of 128 ranks" in note for note in run.notes)
