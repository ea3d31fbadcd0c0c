"""Perfetto traces, parsed back: counts, times, texts, arrows; and that nothing half-overlaps on a track."""

from array import array
from collections import Counter

import numpy as np
import pytest
from made_up_run import ADD, MM, Builder, made_up_run
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor
from perfetto_reader import parse
from phantora.exporters.lanes import disjoint_lanes, nesting_lanes
from phantora.exporters.perfetto import write_perfetto

from phantora.errors import UserError
from phantora.trace.busbw import busbw_bytes_per_s
from phantora.trace.counters import CounterSeries
from phantora.trace.model import RankTrace, Run

RANK_0 = "rank 0 (host 0, GPU 0)"


@pytest.fixture(scope="module")
def run():
    return made_up_run()


@pytest.fixture(scope="module")
def parsed(run, tmp_path_factory):
    return parse(write_perfetto(run, tmp_path_factory.mktemp("trace") / "trace.pftrace"))


def test_every_piece_of_work_is_one_slice(run, parsed):
    for trace in run.ranks:
        node, gpu = divmod(trace.rank, 2)
        rank = f"rank {trace.rank} (host {node}, GPU {gpu})/"
        found = sorted(
            (s.begin_ns, s.end_ns) for s in parsed.slices
            if parsed.path(s.track).startswith(rank) and s.category not in ("blocked", "range", "wait", "launch")
        )  # fmt: skip
        assert found == sorted(zip(trace.start_ns, trace.end_ns))


def test_tracks(parsed):
    paths = [parsed.path(uuid) for uuid in parsed.tracks if parsed.path(uuid).startswith(RANK_0)]
    rows = [
        "host",
        "GPU stream 0 (default)",
        "GPU stream 7: nccl group world gather",
        "GPU stream 8: nccl group world scatter",
        "memory allocated",
        "memory reserved",
    ]
    assert paths == [RANK_0] + [f"{RANK_0}/{row}" for row in rows]
    ranks = [
        parsed.tracks[uuid].sibling_order_rank for uuid in parsed.tracks if parsed.path(uuid).startswith(RANK_0 + "/")
    ]
    assert ranks == sorted(ranks)


def test_kernel_arguments(run, parsed):
    trace = run.ranks[0]
    row = list(trace.signature).index(MM)
    matrix = next(s for s in parsed.on(f"{RANK_0}/GPU stream 0 (default)") if s.name == "mm")
    assert matrix.category == "gemm"
    assert matrix.args["op"] == "aten::mm"
    assert matrix.args["shapes"] == "bf16[4096,4096] -> bf16[4096,4096]"
    assert matrix.args["flops"] == 2 * 4096**3
    assert matrix.args["price_source"] == "measured"
    assert matrix.args["rate"].startswith("593.2 TFLOP/s")
    assert matrix.args["queued_ns"] == trace.start_ns[row] - trace.issue_ns[row] > 0


def test_collective_arguments_and_waits(run, parsed):
    gather = parsed.on(f"{RANK_0}/GPU stream 7: nccl group world gather")
    first, waiting = gather[0], gather[1]
    assert (first.name, first.category) == ("all_gather", "communication")
    assert first.args["bytes"] == 2**28 and first.args["group_size"] == 4
    assert first.args["group"] == "world: ranks 0..3"
    assert first.args["algorithm"] == "ring / Simple"
    assert first.args["busbw_gb_per_s"] == pytest.approx(busbw_bytes_per_s("all_gather", 4, 2**28, 680_000) / 1e9)
    assert first.args["wait_ns"] == 150_000
    assert (waiting.name, waiting.depth, waiting.end_ns - waiting.begin_ns) == ("wait for rank 2", 1, 150_000)


def test_arrows(run, parsed):
    """One arrow number per collective, on all its members; and from a gather to the kernel that it held up."""
    members = Counter(flow for s in parsed.slices if s.category == "communication" for flow in s.flows)
    assert [members[i + 1] for i in range(len(run.collectives))] == [4] * len(run.collectives)
    ends = {flow: s for s in parsed.slices for flow in s.ending_flows}
    begins = {flow: s for s in parsed.slices for flow in s.flows if flow in ends}
    assert ends and begins.keys() == ends.keys()
    between_work = [flow for flow in ends if begins[flow].category != "launch"]
    assert between_work and all(begins[flow].end_ns == ends[flow].begin_ns for flow in between_work)


def test_each_piece_of_work_has_its_launch(run, parsed):
    launches = {s.flows[0]: s for s in parsed.slices if s.category == "launch"}
    led_to = {flow: s for s in parsed.slices for flow in s.ending_flows if flow in launches}
    assert launches.keys() == led_to.keys() and len(launches) == sum(len(trace.stream) for trace in run.ranks)
    assert all(launches[flow].name == led_to[flow].name for flow in launches)
    assert all(led_to[flow].begin_ns - led_to[flow].args["queued_ns"] == launches[flow].end_ns for flow in launches)
    issued = sorted(time for trace in run.ranks for time in trace.issue_ns)
    assert sorted(s.end_ns for s in launches.values()) == issued
    assert {s.depth for s in launches.values()} == {1, 2}  # below step and forward, backward or optimizer
    assert {s.end_ns - s.begin_ns for s in launches.values()} == {4000}


def test_launches_can_be_left_out(run, parsed, tmp_path):
    small = parse(write_perfetto(run, tmp_path / "trace.pftrace", launches=False))
    assert len(small.slices) == sum(s.category != "launch" for s in parsed.slices)
    assert not {flow for s in small.slices for flow in s.ending_flows if flow >= 1 << 40}


def test_launches_never_cross_what_else_the_host_did(tmp_path):
    """Marks and waits closer together than a launch takes, several launches at one time, threads, waits of no
    length."""
    b = Builder(1)
    trace = b.run.ranks[0]
    for step in range(6):
        b.mark(f"step {step}", 1)
        b.kernel(ADD)
        b.host[0] += 700 * step
        b.mark("inner", 1)
        b.kernel(MM)
        b.kernel(ADD)
        trace.issue_ns[-1] = trace.issue_ns[-2]
        b.mark("inner", -1)
        b.host[0] -= 3_500 if step % 2 else 0
        b.mark(f"step {step}", -1)
    trace.thread = array("h", [0, 0, 1] * 6)
    trace.wait_begin_ns, trace.wait_end_ns = array("q", [9_000, 9_500]), array("q", [9_000, 9_700])
    trace.wait_reason, trace.wait_thread = ["event", "stream"], array("h", [0, 1])
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    launches = [s for s in parsed.slices if s.category == "launch"]
    assert Counter(parsed.path(s.track).split("/")[1] for s in launches) == {"host": 12, "host thread 1": 6}
    assert sorted(s.end_ns for s in launches) == sorted(trace.issue_ns)
    assert [(s.name, s.begin_ns) for s in parsed.slices if s.category == "blocked"] == [("stream synchronize", 9_500)]
    ranges = {(s.name, s.begin_ns, s.end_ns) for s in parsed.slices if s.category == "range"}
    assert len(ranges) == 12
    assert_nested(parsed)


def test_counters(run, tmp_path):
    times = np.array([0, 5_000, 9_000])
    series = [
        CounterSeries(
            rank=rank,
            name=f"NIC {rank} out",
            unit="GB/s",
            axis="NIC",
            times_ns=times,
            values=np.array([0.0, 47.5, 0.0]),
        )
        for rank in (1, 3)
    ]
    parsed = parse(write_perfetto(run, tmp_path / "trace.pftrace", counters=series))
    [uuid] = [uuid for uuid in parsed.counters if "NIC 3" in parsed.path(uuid)]
    assert parsed.path(uuid) == "rank 3 (host 1, GPU 1)/NIC 3 out"
    assert parsed.counters[uuid] == [(0, 0), (5_000, 47.5), (9_000, 0)]
    assert parsed.tracks[uuid].counter.unit_name == "GB/s"


def test_host(run, parsed):
    host = parsed.on(f"{RANK_0}/host")
    names = Counter((s.name, s.depth) for s in host)
    assert (names["step 0", 0], names["forward", 1], names["device synchronize", 1]) == (1, 3, 3)
    blocked = sum(s.end_ns - s.begin_ns for s in host if s.category == "blocked")
    assert blocked == sum(run.ranks[0].wait_end_ns) - sum(run.ranks[0].wait_begin_ns)


def test_memory(run, parsed):
    uuid = next(u for u in parsed.counters if parsed.path(u) == f"{RANK_0}/memory allocated")
    assert max(value for _, value in parsed.counters[uuid]) == max(run.ranks[0].allocated_bytes)
    assert parsed.tracks[uuid].counter.unit == parsed.tracks[uuid].counter.UNIT_SIZE_BYTES


def test_slices_of_a_track_nest_or_are_apart(parsed):
    assert_nested(parsed)


def assert_nested(parsed):
    by_track = {}
    for s in parsed.slices:
        by_track.setdefault(s.track, []).append(s)
    for slices in by_track.values():
        open_ends = []
        for s in sorted(slices, key=lambda s: (s.begin_ns, -s.end_ns)):
            while open_ends and open_ends[-1] <= s.begin_ns:
                open_ends.pop()
            assert not open_ends or s.end_ns <= open_ends[-1]
            open_ends.append(s.end_ns)


def test_ranks_can_be_chosen(run, tmp_path):
    few = parse(write_perfetto(run, tmp_path / "trace.pftrace", ranks=[2]))
    assert {path.split("/")[0] for path in map(few.path, few.tracks)} == {"", "rank 2 (host 1, GPU 0)"}
    numbers = {flow for s in few.slices for flow in s.flows}
    assert numbers
    assert numbers.isdisjoint(range(1, len(run.collectives) + 1))  # no arrows to ranks that are not shown
    assert not any(s.category == "wait" for s in few.slices)
    with pytest.raises(UserError, match="no rank 7"):
        write_perfetto(run, tmp_path / "trace.pftrace", ranks=[7])


def test_equal_runs_give_equal_bytes(tmp_path):
    first = write_perfetto(made_up_run(), tmp_path / "a" / "trace.pftrace").read_bytes()
    assert first == write_perfetto(made_up_run(), tmp_path / "b" / "trace.pftrace").read_bytes()


def test_coalesced_and_point_to_point_names(tmp_path):
    b = Builder(2)
    b.collective("all_gather", 64, 5.0, stream=7, count=3)
    b.collective("send_recv", 64, 5.0, stream=8, ranks=[1, 0])
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    names = Counter(s.name for s in parsed.slices if s.category != "launch")
    assert names == {"all_gather x3": 2, "send to 0": 1, "recv from 1": 1}
    coalesced = next(s for s in parsed.slices if s.name == "all_gather x3" and s.args)
    assert (coalesced.args["bytes"], coalesced.args["num_coalesced"]) == (192, 3)


def test_many_ranks_sort_by_name(tmp_path):
    parsed = parse(write_perfetto(made_up_run(1, 1, 12), tmp_path / "trace.pftrace"))
    tops = [track for track in parsed.tracks.values() if track.HasField("process")]
    names = [track.process.process_name for track in tops]
    assert names == sorted(names) and names[2].startswith("rank 02 ")
    assert [track.sibling_order_rank for track in tops] == list(range(12))
    assert parsed.tracks[0].process_ordering == TrackDescriptor.PROCESS_ORDERING_EXPLICIT


def test_an_empty_run_and_work_that_never_ran(tmp_path):
    assert parse(write_perfetto(Run(["x"], "c", 1, 1, ranks=[RankTrace(0)]), tmp_path / "trace.pftrace")).slices == []
    b = Builder(1)
    b.kernel(ADD)
    b.run.ranks[0].start_ns[0] = b.run.ranks[0].end_ns[0] = -1
    b.mark("unclosed", 1)
    b.mark("stray", -1)
    b.mark("stray", -1)
    b.mark("here", 0)
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    assert [(s.name, s.category) for s in parsed.slices] == [("unclosed", "range")]  # no times at all: no launches
    assert [s.name for s in parsed.instants] == ["here"]


def test_work_that_a_run_broken_off_did_not_reach_was_launched(tmp_path):
    b = Builder(1)
    b.kernel(MM)
    b.kernel(ADD)
    b.run.ranks[0].start_ns[1] = b.run.ranks[0].end_ns[1] = -1
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    found = sorted((s.name, s.category) for s in parsed.slices)
    assert found == [("add", "launch"), ("mm", "gemm"), ("mm", "launch")]


def test_a_trace_that_tells_of_no_launches_has_none(tmp_path):
    b = Builder(1)
    b.kernel(MM)
    b.run.ranks[0].issue_ns[0] = -1
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    assert [(s.name, s.category, s.args["queued_ns"]) for s in parsed.slices] == [("mm", "gemm", 0)]


def test_overlapping_work_gets_its_own_track(tmp_path):
    b = Builder(1)
    b.kernel(ADD)
    b.kernel(ADD)
    b.run.ranks[0].start_ns[1] = b.run.ranks[0].start_ns[0] + 1
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    assert {parsed.path(s.track).split("/")[1] for s in parsed.slices if s.category != "launch"} == {
        "GPU stream 0 (default)",
        "GPU stream 0 (default) (overlap 1)",
    }


def test_lanes():
    assert disjoint_lanes(np.array([0, 1, 3]), np.array([2, 4, 5])).tolist() == [0, 1, 0]
    spans = [(0, 10, "a", ""), (2, 4, "b", ""), (8, 12, "c", ""), (10, 11, "d", "")]
    assert [[s[2] for s in lane] for lane in nesting_lanes(spans)] == [["a", "b", "d"], ["c"]]
