"""Kineto documents of a few events: each thing that a trace can say, and what the run makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_samples import AUTOGRAD, annotation, call, collective, copy, document, kernel, launched, op, sync, written
from plain_replay import PlainReplay

from phantora.errors import UserError
from phantora.importers import kineto
from phantora.importers.report import ImportReport
from phantora.trace.model import HOST_DEVICE, Run


def _one(folder: Path, events: list) -> tuple[Run, ImportReport]:
    return kineto.read(written(folder, document(events)))


def _rows(run: Run) -> list[tuple[int, int, int, int]]:
    trace = run.ranks[0]
    return [
        (s, i // 1000, b // 1000, e // 1000)
        for s, i, b, e in zip(trace.stream, trace.issue_ns, trace.start_ns, trace.end_ns)
    ]


def test_rows_are_in_order_of_launch_and_times_from_the_first_event(tmp_path: Path) -> None:
    events = launched("b", 30, 60, 5, 2, stream=9) + launched("a", 20, 50, 10, 1)
    run, report = _one(tmp_path, events)
    assert _rows(run) == [(7, 0, 30, 40), (9, 10, 40, 45)]
    assert run.source == "kineto" and run.virtual_ns == 45_000 and report.taken["kernels"].count == 2


def test_base_time_and_decimals_are_exact(tmp_path: Path) -> None:
    events = [call("cudaLaunchKernel", 5106154014063.354, 2.001, 1), kernel("k", 5106154014066.355, 1.25, 1)]
    run, _ = kineto.read(written(tmp_path, document(events, baseTimeNanoseconds=1790857026000000000)))
    trace = run.ranks[0]
    assert (trace.issue_ns[0], trace.start_ns[0], trace.end_ns[0]) == (0, 3001, 4251)


def test_the_signature_is_that_of_the_innermost_operator(tmp_path: Path) -> None:
    mm = {"Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "c10::BFloat16"], "Input Strides": [[8, 1], [1, 8]]}
    events = [op("aten::matmul", 0, 50), op("aten::mm", 5, 40, **mm), *launched("void cutlass::gemm", 10, 20, 5, 1)]
    events += launched("void at::native::vectorized_elementwise_kernel<4>", 60, 70, 2, 2)
    events += [
        call("cudaMemsetAsync", 80, 2, 3),
        {**kernel("Memset (Device)", 85, 1, 3, bytes=64), "cat": "gpu_memset"},
    ]
    run, _ = _one(tmp_path, events)
    first, second, third = (run.signatures[number] for number in run.ranks[0].signature)
    assert (first.name, first.family, first.duration_ns) == ("aten::mm", "gemm", 5000)
    assert first.inputs == (("float32", (4, 8)), ("bfloat16", (8, 2)))
    assert '["mat2",{"t":[[8,2],[1,8],"bfloat16"]}]' in first.call
    assert (second.name, second.family, second.call) == (
        "void at::native::vectorized_elementwise_kernel<4>",
        "elementwise",
        "",
    )
    assert (third.name, third.family, third.bytes) == ("Memset (Device)", "memset", 64)


def test_only_the_longest_kernel_of_an_operator_has_its_call(tmp_path: Path) -> None:
    args = {"Input Dims": [[4, 4]], "Input type": ["float"]}
    events = [
        op("aten::gelu", 0, 50, **args),
        *launched("short", 1, 10, 2, 1),
        *launched("long", 5, 12, 9, 2),
        *launched("mid", 8, 21, 3, 3),
    ]
    run, _ = _one(tmp_path, events)
    assert [bool(run.signatures[number].call) for number in run.ranks[0].signature] == [False, True, False]


def test_kernels_without_a_launch_and_launches_without_a_kernel_are_counted(tmp_path: Path) -> None:
    events = [kernel("early", 5, 2, 99), *launched("k", 10, 20, 5, 1), call("cudaLaunchKernel", 30, 2, 50)]
    run, report = _one(tmp_path, events)
    assert _rows(run) == [(7, 0, 0, 2), (7, 5, 15, 20)]
    assert report.guessed["kernels and copies whose launch is not in the trace: launched when they began"].examples == [
        "early"
    ]
    assert report.left_out["launches whose kernel is not in the trace"].count == 1


def test_a_long_launch_counts_from_its_end(tmp_path: Path) -> None:
    run, _ = _one(tmp_path, [call("cudaLaunchKernel", 0, 500, 1), kernel("k", 510, 5, 1)])
    assert _rows(run) == [(7, 500, 510, 515)]


def test_the_autograd_thread_shares_the_clock_of_the_main_thread(tmp_path: Path) -> None:
    events = launched("a", 0, 5, 5, 1) + [op("autograd::engine::evaluate_function: X", 19, 9, AUTOGRAD)]
    events += launched("b", 20, 25, 5, 2, tid=AUTOGRAD) + launched("c", 40, 45, 5, 3, tid=9)
    run, _ = _one(tmp_path, events)
    assert list(run.ranks[0].thread) == [0, 0, 1]


def test_event_waits_that_the_trace_names(tmp_path: Path) -> None:
    events = launched("a", 0, 5, 20, 1, stream=7) + launched("b", 3, 8, 3, 2, stream=9)
    events += [call("cudaEventRecord", 6, 1, 3), call("cudaStreamWaitEvent", 8, 1, 4)]
    events += [sync("Stream Wait Event", 8, 1, 4, stream=9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=3)]
    events += launched("late", 10, 26, 3, 5, stream=9)
    run, report = _one(tmp_path, events)
    trace = run.ranks[0]
    assert list(zip(trace.dependent, trace.dependency)) == [(2, 0)]
    assert report.taken["waits of streams for events"].count == 1


def test_an_event_wait_that_times_contradict_is_reported(tmp_path: Path) -> None:
    events = launched("a", 0, 5, 50, 1, stream=7) + [
        call("cudaEventRecord", 6, 1, 3),
        call("cudaStreamWaitEvent", 8, 1, 4),
    ]
    events += [sync("Stream Wait Event", 8, 1, 4, stream=9, wait_on_stream=7, wait_on_cuda_event_record_corr_id=3)]
    events += launched("too early", 10, 16, 3, 5, stream=9)
    run, report = _one(tmp_path, events)
    assert not len(run.ranks[0].dependent)
    assert report.broken["work that began before the end of what its stream had waited for"].examples == ["too early"]


def test_event_waits_of_older_traces_are_guessed(tmp_path: Path) -> None:
    """A collective waits for the kernel before it; the kernel after the wait waits for the collective."""
    events = launched("make", 0, 5, 20, 1)
    events += [op("record_param_comms", 10, 20), call("cudaStreamWaitEvent", 12, 1, 2)]
    events += launched("ncclKernel_AllReduce_RING_LL_Sum_float", 15, 26, 30, 3, stream=20)
    events += [call("cudaStreamWaitEvent", 25, 1, 9)]  # NCCL's own, after its launch
    events += [op("record_param_comms", 40, 5), call("cudaStreamWaitEvent", 41, 1, 4), *launched("use", 50, 57, 5, 5)]
    run, report = _one(tmp_path, events)
    assert list(zip(run.ranks[0].dependent, run.ranks[0].dependency)) == [(1, 0), (2, 1)]
    assert report.guessed["waits of streams for events that the trace does not name"].count == 2
    assert report.left_out["waits of streams inside NCCL, after its launch"].count == 1


def test_waits_of_the_host(tmp_path: Path) -> None:
    events = launched("a", 0, 5, 30, 1, stream=7) + launched("b", 3, 8, 52, 2, stream=9)
    events += [call("cudaEventRecord", 5, 1, 3), call("cudaStreamSynchronize", 10, 26, 4)]
    events += [sync("Stream Sync", 10, 26, 4, stream=7), call("cudaDeviceSynchronize", 40, 22, 5)]
    events += [call("cudaEventSynchronize", 70, 1, 6)]
    events += [sync("Event Sync", 70, 1, 6, wait_on_stream=9, wait_on_cuda_event_record_corr_id=3)]
    events += launched("c", 80, 85, 5, 7)
    run, _ = _one(tmp_path, events)
    trace = run.ranks[0]
    assert trace.wait_reason == ["stream", "device", "event"] and trace.wait_rows == [(0,), (0, 1), (1,)]
    assert list(trace.wait_begin_ns) == [10_000, 40_000, 70_000] and list(trace.wait_end_ns) == [36_000, 62_000, 71_000]
    assert list(trace.wait_position) == [2, 2, 2]


def test_an_unnamed_stream_is_that_of_the_thread_unless_another_held_the_host(tmp_path: Path) -> None:
    events = launched("a", 0, 5, 30, 1, stream=7) + launched("b", 3, 8, 2, 2, stream=9)
    events += [call("cudaStreamSynchronize", 6, 5, 3), call("cudaStreamSynchronize", 15, 21, 4)]
    run, report = _one(tmp_path, events)
    assert run.ranks[0].wait_rows == [(1,), (0,)]
    assert report.guessed["streams that the host waited for: the trace does not name them"].count == 2


@pytest.mark.parametrize(
    "call_name,copy_name,num_bytes,duration,waits",
    [
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", 8, 40, True),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", 8, 40, False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 8, 40, False),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 1 << 20, 40, True),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 1 << 20, 5, False),
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pinned)", 8, 40, True),
        ("cudaMemcpy", "Memcpy DtoD (Device -> Device)", 8, 40, False),
        ("hipMemcpyWithStream", "Memcpy HtoD (Host -> Device)", 8, 40, True),
    ],
)
def test_copies_that_hold_the_host(
    tmp_path: Path, call_name: str, copy_name: str, num_bytes: int, duration: int, waits: bool
) -> None:
    events = [
        call(call_name, 0, duration, 1),
        copy(copy_name, 10, 20, 1, bytes=num_bytes),
        *launched("k", 50, 60, 1, 2),
    ]
    run, _ = _one(tmp_path, events)
    trace = run.ranks[0]
    assert trace.wait_rows == ([(0,)] if waits else [])
    assert list(trace.wait_position) == ([1] if waits else [])
    assert PlainReplay(run).run_all() <= run.virtual_ns


def test_marks_nest_and_optimizer_steps_are_marked(tmp_path: Path) -> None:
    events = launched("k", 1, 3, 2, 1) + [
        annotation("ProfilerStep#4", 0, 100),
        annotation("Optimizer.step#SGD.step", 10, 20),
    ]
    events += [annotation("elsewhere", 0, 5, tid=55)]
    run, report = _one(tmp_path, events)
    trace = run.ranks[0]
    assert list(zip(trace.mark_name, trace.mark_depth)) == [
        ("ProfilerStep#4", 1), ("Optimizer.step#SGD.step", 1), ("Optimizer.step#SGD.step", -1), ("optimizer.step", 0),
        ("ProfilerStep#4", -1),
    ]  # fmt: skip
    assert report.left_out["ranges of other threads"].count == 1


def test_a_trace_of_the_cpu_alone(tmp_path: Path) -> None:
    events = [
        op("aten::linear", 0, 30, **{"Input Dims": [[2, 3]], "Input type": ["float"]}),
        op("aten::addmm", 5, 20),
        op("aten::relu", 40, 10),
    ]
    run, report = _one(tmp_path, events)
    trace = run.ranks[0]
    assert [run.signatures[number].name for number in trace.signature] == ["aten::linear", "aten::relu"]
    assert set(trace.device) == {HOST_DEVICE} and trace.wait_rows == [(0,), (1,)]
    assert report.left_out["operators inside other operators of the CPU"].count == 1
    assert PlainReplay(run).run_all() == run.virtual_ns == 50_000


def test_memory_samples(tmp_path: Path) -> None:
    sample = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 7, "tid": 7, "ts": 4}
    args = {"Device Type": 1, "Device Id": 0, "Total Allocated": 512, "Total Reserved": 2048}
    cpu = {**sample, "args": {**args, "Device Type": 0}}
    run, report = _one(tmp_path, launched("k", 1, 3, 2, 1) + [{**sample, "args": args}, cpu])
    trace = run.ranks[0]
    assert (list(trace.memory_ns), list(trace.allocated_bytes), list(trace.reserved_bytes)) == ([3000], [512], [2048])
    assert report.left_out["allocations of the CPU"].count == 1


def test_what_is_not_understood_is_counted(tmp_path: Path) -> None:
    events = launched("k", 1, 3, 2, 1) + [
        3,
        {"ph": "X", "cat": "martian", "name": "m"},
        {"ph": "q"},
        op("no time", None, 3),
    ]
    events += [kernel("no stream", 5, 2, 9, device="x"), op("backwards", 5, -3), kernel("no correlation", 9, 1, -1)]
    run, report = _one(tmp_path, events)
    left = {what: counted.count for what, counted in report.left_out.items()}
    assert left["events that are not objects"] == 1 and left["events whose time cannot be read"] == 2
    assert left["events of phase X, category martian, which are not known here"] == 1
    assert left["device work without a device or stream"] == 1
    assert any("martian" in note for note in run.notes)
    assert len(run.ranks[0].start_ns) == 2


def test_work_before_its_launch_and_overlapping_work_are_reported(tmp_path: Path) -> None:
    events = launched("a", 20, 5, 10, 1) + launched("b", 25, 10, 10, 2)
    run, report = _one(tmp_path, events)
    trace = run.ranks[0]
    assert all(issue <= start for issue, start in zip(trace.issue_ns, trace.start_ns))
    assert report.broken["kernels and copies that began before their launch"].count == 2
    assert report.broken["work that began before the end of the work before it on its stream"].examples == ["b"]


def test_a_stream_that_ran_in_another_order_than_it_was_launched(tmp_path: Path) -> None:
    events = launched("first launched", 0, 50, 10, 1) + launched("first started", 20, 30, 10, 2)
    run, report = _one(tmp_path, events)
    assert _rows(run) == [(7, 0, 30, 40), (7, 0, 50, 60)]
    assert sum(counted.count for counted in report.broken.values()) == 1


@pytest.mark.parametrize(
    "documents,message",
    [
        ([{"schemaVersion": 1}], "neither a Kineto trace"),
        ([{"traceEvents": []}], "nothing to import"),
        ([document(launched("k", 0, 1, 1, 1), 0), document(launched("k", 0, 1, 1, 1), 0)], "both of rank 0"),
        ([{"schema": "1.0.1", "nodes": []}], "no Kineto trace among the files"),
    ],
)
def test_mistakes(tmp_path: Path, documents: list, message: str) -> None:
    with pytest.raises(UserError, match=message):
        kineto.read(written(tmp_path, *documents))


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        kineto.read([tmp_path / "no.json"])
    with pytest.raises(UserError, match="the folder holds no trace"):
        kineto.read([tmp_path])


# several ranks


def _rank(rank: int, world: int, late: int, names: list[tuple[str, dict]], skew: int = 0) -> dict:
    """Collectives of 100 us each; this rank arrives `late` us after the first, by a clock that is `skew` us ahead."""
    events, at = [], 0
    for number, (name, args) in enumerate(names):
        start = at + 10 + late
        events += launched(
            f"ncclDevKernel_{name}", start + skew, start + skew, at + 110 - start, number + 1, stream=20, **args
        )
        at += 200
    return document(events, rank, world)


def test_collectives_are_matched_over_ranks(tmp_path: Path) -> None:
    ranks = [0, 1, 2]
    names = [
        ("AllReduce", collective("allreduce", 1, ranks, 100)),
        ("AllGather", collective("_allgather_base", 2, ranks, 8)),
    ]
    names[1][1]["Out msg nelems"] = 24
    run, report = kineto.read(written(tmp_path, *(_rank(r, 3, 5 * r, names) for r in ranks)))
    assert [(c.kind, c.bytes, c.ranks, c.dtype) for c in run.collectives] == [
        ("all_reduce", 400, (0, 1, 2), "float32"), ("all_gather", 96, (0, 1, 2), "float32"),
    ]  # fmt: skip
    assert [(c.start_ns, c.end_ns) for c in run.collectives] == [(10_000, 100_000), (210_000, 300_000)]
    assert [trace.work_collectives for trace in run.ranks] == [[(0,), (1,)]] * 3
    assert run.groups[0].name == "0" and "ranks share a clock" in " ".join(run.notes) and not report.broken
    assert PlainReplay(run).run_all() == run.virtual_ns


def test_clocks_that_differ_are_aligned_on_collectives(tmp_path: Path) -> None:
    names = [("AllReduce", collective("allreduce", number, [0, 1], 100)) for number in range(3)]
    run, _ = kineto.read(written(tmp_path, _rank(0, 2, 0, names), _rank(1, 2, 7, names, skew=5000)))
    assert list(run.ranks[0].end_ns) == list(run.ranks[1].end_ns) == [100_000, 300_000, 500_000]
    assert "5000.0 us apart" in " ".join(run.notes)


def test_unequal_parts_of_an_all_to_all(tmp_path: Path) -> None:
    sizes = ["[6, 2]", "[5, 5]"]
    args = [collective("all_to_allv", 1, [0, 1], n, **{"In split size": s}) for n, s in zip((8, 20), sizes)]
    run, _ = kineto.read(written(tmp_path, *(_rank(r, 2, 0, [("SendRecv", args[r])]) for r in (0, 1))))
    assert [(c.kind, c.bytes, c.split_bytes) for c in run.collectives] == [("all_to_all", 80, ((24, 8), (40, 40)))]


def test_sends_and_receives_are_matched(tmp_path: Path) -> None:
    send = collective("send", 1, [0, 1], 64, **{"Rank": 0, "Dst Rank": 1})
    recv = collective("recv", 1, [0, 1], 64, **{"Rank": 1, "Src Rank": 0})
    run, _ = kineto.read(written(tmp_path, _rank(0, 2, 0, [("SendRecv", send)]), _rank(1, 2, 4, [("SendRecv", recv)])))
    assert [(c.kind, c.ranks, c.bytes) for c in run.collectives] == [("send_recv", (0, 1), 256)]
    assert [trace.work_collectives for trace in run.ranks] == [[(0,)], [(0,)]]


def test_ranks_that_are_not_there(tmp_path: Path) -> None:
    names = [("Broadcast", collective("broadcast", 1, [0, 1, 2, 3], 100, Rank=2))]
    run, report = kineto.read(written(tmp_path, _rank(3, 4, 0, names)))
    assert run.world_size == 1 and [trace.rank for trace in run.ranks] == [0] and not run.collectives
    assert [(run.signatures[s].name, run.signatures[s].bytes) for s in run.ranks[0].signature] == [
        ("broadcast of 4 ranks", 400)
    ]
    assert report.guessed["collectives whose other ranks have no trace: as work of their duration"].count == 1
    assert "1 of 4 ranks are in the import: the run has these alone" in run.notes
    assert "ranks counted anew from 0: they were 3" in run.notes


def test_groups_of_ranks_that_are_all_there_stay(tmp_path: Path) -> None:
    """Ranks 8 and 9 of 16 on nodes of 8: their own group is whole, the world is not."""
    names = [
        ("AllReduce", collective("allreduce", 1, list(range(16)), 100)),
        ("AllReduce", {**collective("allreduce", 1, [8, 9], 100), "Process Group Name": "7"}),
    ]
    run, report = kineto.read(written(tmp_path, *(_rank(rank, 16, 0, names) for rank in (9, 8))))
    assert run.world_size == 2 and [trace.rank for trace in run.ranks] == [0, 1]
    assert [(c.ranks, c.bytes) for c in run.collectives] == [((0, 1), 400)] and run.groups[0].name == "7"
    assert all([s >= 0 for s in trace.signature] == [True, False] for trace in run.ranks)
    assert report.guessed["collectives whose other ranks have no trace: as work of their duration"].count == 2
    assert PlainReplay(run).run_all() == run.virtual_ns


def test_a_collective_that_one_capture_lacks_is_work(tmp_path: Path) -> None:
    names = [("AllReduce", collective("allreduce", number, [0, 1], 100)) for number in (1, 2, 3)]
    run, report = kineto.read(written(tmp_path, _rank(0, 2, 0, names), _rank(1, 2, 0, names[:2])))
    assert [len(trace.work_collectives) for trace in run.ranks] == [2, 2] and len(run.collectives) == 2
    assert run.ranks[0].end_ns[2] - run.ranks[0].start_ns[2] == run.signatures[run.ranks[0].signature[2]].duration_ns
    assert report.guessed["collectives that some of their ranks' traces lack: as work of their duration"].count == 1


def test_ranks_keep_their_nodes(tmp_path: Path) -> None:
    files = [{**_rank(rank, 32, 0, []), "deviceProperties": [{"name": "g"}] * 8} for rank in (0, 1, 8, 9)]
    for file in files:
        file["traceEvents"] += launched("k", 0, 5, 1, 1)
    assert kineto.read(written(tmp_path, *files))[0].nproc_per_node == 2


def test_marks_of_a_moment(tmp_path: Path) -> None:
    mark = {"ph": "i", "cat": "user_annotation", "name": "optimizer.step", "pid": 7, "tid": 7}
    events = [*launched("k", 1, 3, 2, 1), annotation("step", 0, 20), {**mark, "ts": 10}, {**mark, "ts": 30}]
    run, _ = _one(tmp_path, [*events, annotation("Optimizer.step#SGD.step", 5, 5)])
    trace = run.ranks[0]
    assert list(zip(trace.mark_ns, trace.mark_name, trace.mark_depth)) == [
        (0, "step", 1), (5_000, "Optimizer.step#SGD.step", 1), (10_000, "optimizer.step", 0),
        (10_000, "Optimizer.step#SGD.step", -1), (20_000, "step", -1), (30_000, "optimizer.step", 0),
    ]  # fmt: skip
    assert trace.host_end_ns == 30_000


def test_events_that_cannot_be_read_are_named_when_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to import.*left out: 2 events whose time cannot be read"):
        _one(tmp_path, launched("k", 0, -1, "x", 1)[1:] * 2)


def test_a_folder_of_traces(tmp_path: Path) -> None:
    written(tmp_path, *(_rank(rank, 2, 0, [("AllReduce", collective("allreduce", 1, [0, 1], 9))]) for rank in (0, 1)))
    (tmp_path / "readme.txt").write_text("x")
    run, report = kineto.read([tmp_path])
    assert run.world_size == 2 and len(run.collectives) == 1
    assert report.left_out["files of folders that are no traces by their name"].count == 1


def test_collectives_of_older_traces_are_those_of_the_range_round_them(tmp_path: Path) -> None:
    def rank(number: int) -> dict:
        inner = {"Input Dims": [[16]], "Input type": ["float"]}
        events = [op("record_param_comms", 0, 30), annotation("nccl:_all_gather_base", 2, 20, **inner)]
        return document(
            events + launched("ncclKernel_AllGather_RING_LL_Sum_int8_t", 5, 15, 50, 1, stream=20), number, 2
        )

    run, report = kineto.read(written(tmp_path, rank(0), rank(1)))
    assert [(c.kind, c.bytes, c.dtype, c.ranks) for c in run.collectives] == [("all_gather", 128, "float32", (0, 1))]
    assert report.guessed["collectives whose group is not in the trace: all ranks"].count == 2


def test_a_rocm_trace(tmp_path: Path) -> None:
    events = [call("hipExtModuleLaunchKernel", 0, 2, 1), kernel("Cijk_Ailk_Bljk_SB_MT64x64x16", 5, 3, 1, stream=0)]
    events += [
        call("hipLaunchKernel", 4, 2, 2),
        kernel("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", 10, 3, 2, stream=3),
    ]
    events += [call("hipDeviceSynchronize", 8, 7, 3)]
    run, report = _one(tmp_path, events)
    trace = run.ranks[0]
    assert run.signatures[trace.signature[0]].family == "gemm" and trace.signature[1] == -1
    assert trace.wait_rows == [(0, 1)]
    assert report.guessed["collectives of which only the kernel's name is known: size 0"].count == 1
