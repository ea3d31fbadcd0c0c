"""Perfetto traces, parsed back: counts, times, texts, arrows; and that nothing half-overlaps on a track."""

import resource
import time
from array import array
from collections import Counter

import numpy as np
import pytest
from made_up_run import ADD, MM, Builder, made_up_run, signature
from perfetto_reader import parse
from phantora.exporters.lanes import disjoint_lanes, nesting_lanes
from phantora.exporters.perfetto import write_perfetto

from phantora.errors import UserError
from phantora.trace.busbw import busbw_bytes_per_s
from phantora.trace.model import RankTrace, Run

RANK_0 = "rank 0 · node 0 GPU 0"


@pytest.fixture(scope="module")
def run():
    return made_up_run()


@pytest.fixture(scope="module")
def parsed(run, tmp_path_factory):
    return parse(write_perfetto(run, tmp_path_factory.mktemp("trace") / "trace.pftrace"))


def test_every_piece_of_work_is_one_slice(run, parsed):
    for trace in run.ranks:
        node, gpu = divmod(trace.rank, 2)
        rank = f"rank {trace.rank} · node {node} GPU {gpu}/"
        found = sorted(
            (s.begin_ns, s.end_ns) for s in parsed.slices
            if parsed.path(s.track).startswith(rank) and s.category not in ("blocked", "range", "wait")
        )  # fmt: skip
        assert found == sorted(zip(trace.start_ns, trace.end_ns))


def test_tracks(parsed):
    paths = [parsed.path(uuid) for uuid in parsed.tracks if parsed.path(uuid).startswith(RANK_0)]
    rows = [
        "host",
        "stream 0 (default)",
        "nccl world gather",
        "nccl world scatter",
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
    matrix = next(s for s in parsed.on(f"{RANK_0}/stream 0 (default)") if s.name == "mm")
    assert matrix.category == "gemm"
    assert matrix.args["op"] == "aten::mm"
    assert matrix.args["shapes"] == "bf16[4096,4096] -> bf16[4096,4096]"
    assert matrix.args["flops"] == 2 * 4096**3
    assert matrix.args["price_source"] == "measured"
    assert matrix.args["rate"].startswith("593.2 TFLOP/s")
    assert matrix.args["queued_ns"] == trace.start_ns[row] - trace.issue_ns[row] > 0


def test_collective_arguments_and_waits(run, parsed):
    gather = parsed.on(f"{RANK_0}/nccl world gather")
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
    assert all(begins[flow].end_ns == ends[flow].begin_ns for flow in ends)


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
    assert {path.split("/")[0] for path in map(few.path, few.tracks)} == {"rank 2 · node 1 GPU 0"}
    numbers = {flow for s in few.slices for flow in s.flows}
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
    names = Counter(s.name for s in parsed.slices)
    assert names == {"all_gather x3": 2, "send to 0": 1, "recv from 1": 1}
    coalesced = next(s for s in parsed.slices if s.name == "all_gather x3")
    assert (coalesced.args["bytes"], coalesced.args["num_coalesced"]) == (192, 3)


def test_many_ranks_sort_by_name(tmp_path):
    parsed = parse(write_perfetto(made_up_run(1, 1, 12), tmp_path / "trace.pftrace"))
    tops = [track.name for track in parsed.tracks.values() if not track.parent_uuid]
    assert tops == sorted(tops) and tops[2].startswith("rank 02 ")


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
    assert [s.name for s in parsed.slices] == ["unclosed"]
    assert [s.name for s in parsed.instants] == ["here"]


def test_overlapping_work_gets_its_own_track(tmp_path):
    b = Builder(1)
    b.kernel(ADD)
    b.kernel(ADD)
    b.run.ranks[0].start_ns[1] = b.run.ranks[0].start_ns[0] + 1
    parsed = parse(write_perfetto(b.finish(), tmp_path / "trace.pftrace"))
    assert {parsed.path(s.track).split("/")[1] for s in parsed.slices} == {
        "stream 0 (default)",
        "stream 0 (default) (overlap 1)",
    }


def test_lanes():
    assert disjoint_lanes(np.array([0, 1, 3]), np.array([2, 4, 5])).tolist() == [0, 1, 0]
    spans = [(0, 10, "a", ""), (2, 4, "b", ""), (8, 12, "c", ""), (10, 11, "d", "")]
    assert [[s[2] for s in lane] for lane in nesting_lanes(spans)] == [["a", "b", "d"], ["c"]]


def test_a_fifth_of_a_million_slices_are_fast_and_small(tmp_path):
    """The promise is a million slices in 1.5 s of CPU and 150 MB; a fifth here, with room for a loaded machine."""
    count = 200_000
    run = Run(["x"], "c", 1, 1, signatures=[signature(f"aten::op{i}", "gemm", 2) for i in range(500)])
    trace = RankTrace(0)
    start = np.arange(count, dtype=np.int64) * 3000
    trace.device = array("h", bytes(2 * count))
    trace.stream = array("q", bytes(8 * count))
    trace.signature = array("q", (np.arange(count) % 500).tobytes())
    trace.issue_ns, trace.start_ns = array("q", start.tobytes()), array("q", start.tobytes())
    trace.end_ns = array("q", (start + 3000).tobytes())
    run.ranks.append(trace)
    before, clock = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    path = write_perfetto(run, tmp_path / "trace.pftrace")
    assert time.process_time() - clock < 1.0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 60
    assert path.stat().st_size < 30e6
