"""Kineto files: what HolisticTraceAnalysis computes from them, and that our own importer finds the run again."""

import gzip
import json
import re

import pytest
from made_up_run import ADD, COPY, Builder, made_up_run
from phantora.exporters.chrome_json import event_file
from phantora.exporters.chrome_kineto import write_kineto
from phantora.exporters.chrome_kineto_names import collective_arguments, nccl_kernel

from phantora.cluster import load_cluster
from phantora.report.breakdown import rank_breakdown
from phantora.trace.model import CollectiveInfo


@pytest.fixture(scope="module")
def run():
    made = made_up_run()
    made.cluster = load_cluster("dgx-h100")
    for info in made.collectives:
        info.algorithm = "ring/LL128"
    return made


@pytest.fixture(scope="module")
def paths(run, tmp_path_factory):
    return write_kineto(run, tmp_path_factory.mktemp("kineto"))


def document(path):
    with gzip.open(path, "rt") as file:
        return json.load(file)


def test_one_file_per_rank_that_says_its_rank(run, paths):
    assert [path.name for path in paths] == [f"rank_{rank}.json.gz" for rank in range(4)]
    with gzip.open(paths[2], "rt") as file:
        # HTA finds the rank by this pattern in the text, and takes 0 where it does not match.
        assert re.search(r'"distributedInfo": \{[^}]*"rank": (\d+)', file.read(2000)).group(1) == "2"
    assert document(paths[0])["deviceProperties"][0]["name"] == "NVIDIA H100 80GB HBM3"


def union_ns(spans):
    total, reach = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total


def hta_view(path):
    """Device events as HTA sorts them: communication by name, memory by name, the rest computes (times in ns)."""
    kinds = {"communication": [], "memory": [], "computation": []}
    for e in document(path)["traceEvents"]:
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = "computation"
            if re.match(r"^nccl.*Kernel", e["name"]):
                kind = "communication"
            elif re.match(r"^Memcpy|^Memset", e["name"]):
                kind = "memory"
            begin = round(e["ts"] * 1000)
            kinds[kind].append((begin, begin + round(e["dur"] * 1000)))
            assert isinstance(e["args"]["stream"], int) and isinstance(e["args"]["correlation"], int)
    return kinds


def test_temporal_breakdown_and_overlap_as_hta_computes_them(run, paths):
    for trace, path in zip(run.ranks, paths):
        kinds, expected = hta_view(path), rank_breakdown(trace)
        compute = union_ns(kinds["computation"] + kinds["memory"])
        busy = union_ns([span for spans in kinds.values() for span in spans])
        assert compute == expected.compute_ns
        assert union_ns(kinds["communication"]) == expected.communication_ns
        assert busy - compute == expected.exposed_communication_ns


def test_each_kernel_has_its_launch_and_operator(paths):
    """Without a launch of the same correlation HTA throws kernels away; its idle times come from these pairs."""
    events = document(paths[0])["traceEvents"]
    launches = {
        e["args"]["correlation"]: e for e in events if e.get("cat") == "cuda_runtime" and "External id" in e["args"]
    }
    operators = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy")]
    assert len(kernels) == 150
    for kernel in kernels:
        launch, operator = launches[kernel["args"]["correlation"]], operators[kernel["args"]["External id"]]
        assert operator["ts"] <= launch["ts"] and launch["ts"] + launch["dur"] <= kernel["ts"] + 0.001
    matrix = next(e for e in events if e.get("cat") == "cpu_op" and e["name"] == "aten::mm")
    assert matrix["args"]["Input Dims"] == [[4096, 4096]] and matrix["args"]["Input type"] == ["c10::BFloat16"]
    copy = next(e for e in events if e.get("cat") == "gpu_memcpy")
    assert copy["name"] == "Memcpy DtoH (Device -> Pinned)"
    assert launches[copy["args"]["correlation"]]["name"] == "cudaMemcpyAsync"
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == 150


def test_collectives_say_what_they_are(paths):
    gather = next(e for e in document(paths[1])["traceEvents"] if "AllGather" in e["name"])
    assert gather["name"] == "ncclDevKernel_AllGather_RING_LL128"
    args = gather["args"]
    assert (args["Collective name"], args["In msg nelems"], args["Out msg nelems"]) == ("_allgather_base", 2**25, 2**27)
    assert (args["Group size"], args["dtype"], args["Process Group Ranks"]) == (4, "BFloat16", "[0, 1, 2, 3]")


def test_our_importer_finds_the_run_again(run, paths):
    from phantora.importers.kineto import read

    again, report = read(paths)
    assert not report.guessed and not report.broken
    for before, after in zip(run.ranks, again.ranks):
        for column in ("device", "stream", "start_ns", "end_ns"):
            assert list(getattr(before, column)) == list(getattr(after, column)), column
        assert sorted(zip(before.dependent, before.dependency)) == sorted(zip(after.dependent, after.dependency))
        assert list(before.wait_begin_ns) == list(after.wait_begin_ns) and list(before.wait_end_ns) == list(
            after.wait_end_ns
        )
    for before, after in zip(run.collectives, again.collectives):
        for field in ("kind", "ranks", "bytes", "dtype", "root", "start_ns", "end_ns"):
            assert getattr(before, field) == getattr(after, field), field


def test_step_marks_come_back(tmp_path):
    from phantora.importers.kineto import read

    made = made_up_run()
    for trace in made.ranks:
        middle = len(trace.mark_ns) // 2
        for at, ns in ((len(trace.mark_ns), trace.host_end_ns), (middle, trace.mark_ns[middle])):
            trace.mark_ns.insert(at, ns)
            trace.mark_name.insert(at, "optimizer.step")
            trace.mark_depth.insert(at, 0)
    again, _ = read(write_kineto(made, tmp_path))
    for trace, old in zip(again.ranks, made.ranks):
        found, marks = (
            [ns for ns, depth in zip(t.mark_ns, t.mark_depth) if depth == 0] for t in (trace, old)
        )
        assert found == marks and len(found) == 2
        assert sorted(zip(trace.mark_ns, trace.mark_name)) == sorted(zip(old.mark_ns, old.mark_name))


def test_a_file_gets_its_name_when_it_is_complete(tmp_path):
    with pytest.raises(KeyboardInterrupt), event_file(tmp_path / "x.json.gz", {"a": 1}) as file:
        file.add("{}")
        assert not (tmp_path / "x.json.gz").exists()
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_messages_roots_and_coalesced_collectives():
    message = CollectiveInfo("send_recv", 0, (5, 2), 4096, "float32")
    sent, received = (collective_arguments([message], rank, "pp", 1) for rank in (5, 2))
    assert (sent["Collective name"], sent["Dst Rank"]) == ("send", 2)
    assert (received["Collective name"], received["Src Rank"], received["In msg nelems"]) == ("recv", 5, 1024)
    assert nccl_kernel(message) == "ncclDevKernel_SendRecv"
    reduce = CollectiveInfo("reduce", 0, (0, 1, 2), 300, "int64", 2, algorithm="")
    assert collective_arguments([reduce], 0, "", 1)["Rank"] == 2
    assert nccl_kernel(reduce) == "ncclDevKernel_Reduce_Sum_i64_RING_SIMPLE"
    part = CollectiveInfo("all_gather", 0, (0, 1), 64, "uint8")
    assert collective_arguments([part, part, part], 0, "", 1)["Out msg nelems"] == 192


def test_names_of_files_and_equal_bytes(tmp_path):
    b = Builder(12)
    b.kernel(ADD)
    b.kernel(COPY)
    run = b.finish()
    plain = write_kineto(run, tmp_path, [3, 11], "trace.json")
    assert [path.name for path in plain] == ["trace03.json", "trace11.json"]
    json.loads(plain[0].read_text())
    first = write_kineto(run, tmp_path / "a")[0].read_bytes()
    assert first == write_kineto(run, tmp_path / "b")[0].read_bytes()
