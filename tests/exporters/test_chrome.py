"""Chrome's JSON: what it holds, that slices nest and arrows meet slices, compression."""

import gzip
import json
from collections import Counter

import numpy as np
import pytest
from made_up_run import ADD, MM, Builder, made_up_run
from phantora.exporters.chrome import write_chrome
from phantora.exporters.chrome_json import event_file, micros

from phantora.errors import UserError
from phantora.trace.counters import CounterSeries
from phantora.trace.model import RankTrace, Run


@pytest.fixture(scope="module")
def run():
    return made_up_run()


@pytest.fixture(scope="module")
def events(run, tmp_path_factory):
    series = CounterSeries(
        rank=2, name="NIC 0 out", unit="GB/s", axis="NIC", times_ns=np.array([0, 1500]), values=np.array([0, 47.5])
    )
    path = write_chrome(run, tmp_path_factory.mktemp("chrome") / "trace.json", counters=[series])
    return json.loads(path.read_text())["traceEvents"]


def names_of(events, kind):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == kind}


def test_processes_and_threads(events):
    assert names_of(events, "process_name")[3, 0] == "rank 3 (host 1, GPU 1)"
    threads = names_of(events, "thread_name")
    assert [threads[0, tid] for tid in (0, 1000, 1001, 1002)] == [
        "host", "GPU stream 0 (default)", "GPU stream 7: nccl group world gather",
        "GPU stream 8: nccl group world scatter",
    ]  # fmt: skip


def test_every_piece_of_work_and_its_times(run, events):
    work = [e for e in events if e["ph"] == "X" and e["tid"] >= 1000]
    found = sorted((e["pid"], round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)) for e in work)
    assert found == sorted((t.rank, start, end) for t in run.ranks for start, end in zip(t.start_ns, t.end_ns))
    matrix = next(e for e in work if e["name"] == "mm")
    assert (matrix["cat"], matrix["args"]["shapes"]) == ("gemm", "bf16[4096,4096] -> bf16[4096,4096]")
    gather = next(e for e in work if e["name"] == "all_gather")
    assert (gather["args"]["bytes"], gather["args"]["ranks"]) == (2**28, "4: 0, 1, 2, 3")


def test_slices_nest_in_the_order_of_the_file(events):
    """Viewers that see two slices begin together put the later one of the file inside the earlier one."""
    open_ends = {}
    for e in events:
        if e["ph"] != "X":
            continue
        begin, end = round(e["ts"] * 1000), round((e["ts"] + e["dur"]) * 1000)
        stack = open_ends.setdefault((e["pid"], e["tid"]), [])
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1], e
        stack.append(end)


def test_arrows(run, events):
    arrows = {}
    for e in events:
        if e["ph"] in "stf":
            arrows.setdefault((e["cat"], e["id"]), []).append(e)
    launches = [ends for (cat, _), ends in arrows.items() if cat == "launch"]
    assert len(launches) == sum(len(trace.stream) for trace in run.ranks)
    assert all([e["ph"] for e in ends] == ["s", "f"] for ends in launches)
    collectives = [ends for (cat, _), ends in arrows.items() if cat == "collective"]
    assert len(collectives) == len(run.collectives)
    for ends in collectives:  # a viewer reads them in order of time
        assert "".join(e["ph"] for e in sorted(ends, key=lambda e: e["ts"])) == "sttf"


def test_counters(events):
    values = [(e["ts"], e["args"]) for e in events if e["ph"] == "C" and e["name"] == "NIC 0 out"]
    assert values == [(0, {"GB/s": 0}), (1.5, {"GB/s": 47.5})]
    assert any(e["ph"] == "C" and e["name"] == "memory" and e["args"]["allocated"] == 3 * 2**30 for e in events)


def test_compressed_files_hold_the_same_and_are_equal(run, events, tmp_path):
    first = write_chrome(run, tmp_path / "a.json.gz")
    assert first.read_bytes() == write_chrome(made_up_run(), tmp_path / "b.json.gz").read_bytes()
    with gzip.open(first) as file:
        assert len(json.load(file)["traceEvents"]) == len(events) - 2  # without the counter


def test_without_launches_and_some_ranks(run, events, tmp_path):
    few = json.loads(write_chrome(run, tmp_path / "few.json", [1, 2], launches=False).read_text())["traceEvents"]
    assert {e["pid"] for e in few} == {1, 2} and not any(e.get("cat") == "launch" for e in few)
    phases = Counter(e["ph"] for e in few if e.get("cat") == "collective")
    assert phases == {"s": len(run.collectives), "f": len(run.collectives)}
    with pytest.raises(UserError, match="no rank 9"):
        write_chrome(run, tmp_path / "few.json", [9])


def test_odd_runs(tmp_path):
    empty = Run(["x"], "c", 1, 1, ranks=[RankTrace(0)])
    assert json.loads(write_chrome(empty, tmp_path / "empty.json").read_text())["traceEvents"]
    b = Builder(1)
    b.mark('a "quoted"\nname', 1)
    b.kernel(ADD)
    b.kernel(MM)
    b.run.ranks[0].start_ns[1] = b.run.ranks[0].end_ns[1] = -1
    b.mark("here", 0)
    events = json.loads(write_chrome(b.finish(), tmp_path / "odd.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e.get("cat") == "range"} == {'a "quoted"\nname', "here"}
    assert sum(e["ph"] == "f" for e in events) == 1


def test_micros_lose_nothing():
    assert [micros(ns) for ns in (0, 999, 1_000_001, 12_345_678)] == ["0.000", "0.999", "1000.001", "12345.678"]


def test_a_file_without_events_is_json(tmp_path):
    with event_file(tmp_path / "x.json", {"a": 1}):
        pass
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1, "traceEvents": []}
