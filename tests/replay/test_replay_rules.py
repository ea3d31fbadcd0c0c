"""What a replay keeps, and what it moves: hosts, streams, dependencies, collectives, other threads and other hosts."""

import pytest
from run_builder import CLUSTER, MIB, RunBuilder, collective_ns, spans

from phantora.replay import ReplayOptions, replay
from phantora.trace.causality import violations
from phantora.trace.model import HOST_DEVICE, NO_STREAM


def test_streams_run_in_order_and_events_join_them():
    b = RunBuilder(1)
    first = b.kernel(0, 1_000, 10_000)
    b.kernel(0, 2_000, 5_000)
    b.kernel(0, 3_000, 700, stream=3, after=(first,))
    new = replay(b.run, CLUSTER)
    assert spans(new.ranks[0]) == [(1_000, 11_000), (11_000, 16_000), (11_000, 11_700)]
    assert violations(new) == []
    assert new.source == "replayed" and new.virtual_ns == 16_000


def test_a_host_that_waited_moves_and_its_marks_and_memory_with_it():
    """Recorded: a kernel of 10 us, waited for until 12 us; now it takes 30 us."""
    b = RunBuilder(1)
    row = b.kernel(0, 2_000, 30_000)
    b.recorded(0, row, 2_000, 12_000)
    b.wait(0, 3_000, 12_000, rows=(row,))
    later = b.kernel(0, 15_000, 1_000)
    trace = b.run.ranks[0]
    b.recorded(0, later, 15_000, 16_000)
    trace.mark_ns.extend((2_500, 12_000, 15_500))
    trace.mark_name, trace.host_end_ns = ["a", "b", "c"], 17_000
    trace.mark_depth.extend((0, 0, 0))
    for ns in (2_000, 13_000):
        for column, value in (
            (trace.memory_ns, ns),
            (trace.memory_device, 0),
            (trace.memory_thread, 0),
            (trace.allocated_bytes, 1),
            (trace.reserved_bytes, 1),
        ):
            column.append(value)
    new = replay(b.run, CLUSTER).ranks[0]
    assert spans(new) == [(2_000, 32_000), (35_000, 36_000)]
    assert (new.wait_begin_ns[0], new.wait_end_ns[0]) == (3_000, 32_000)
    assert list(new.mark_ns) == [2_500, 32_000, 35_500]
    assert list(new.memory_ns) == [2_000, 33_000]
    assert new.host_end_ns == 37_000


def test_a_wait_that_took_no_time_may_take_some():
    b = RunBuilder(1)
    row = b.kernel(0, 1_000, 50_000)
    b.recorded(0, row, 1_000, 2_000)
    b.wait(0, 9_000, 9_000, rows=(row,))
    b.kernel(0, 10_000, 100)
    assert replay(b.run, CLUSTER).ranks[0].start_ns[1] == 52_000


def test_what_a_wait_took_beyond_its_causes_is_kept():
    """A synchronize call that returned 4 us after the kernel's end (measured traces have that)."""
    b = RunBuilder(1)
    row = b.kernel(0, 1_000, 20_000)
    b.recorded(0, row, 1_000, 11_000)
    b.wait(0, 2_000, 15_000, rows=(row,))
    assert replay(b.run, CLUSTER).ranks[0].wait_end_ns[0] == 25_000


def test_a_host_waits_for_the_host_of_another_rank():
    """Rank 1 posts after its kernel, which now takes 40 us more; rank 0 takes the message up 60 us after that."""
    b = RunBuilder(2)
    row = b.kernel(1, 1_000, 50_000)
    b.recorded(1, row, 1_000, 11_000)
    b.wait(1, 2_000, 11_000, rows=(row,))
    post = b.wait(1, 12_000, 12_000, reason="point")
    own = b.wait(0, 5_000, 5_000, reason="point")
    b.wait(0, 5_000, 72_000, peers=(own, post), delay_ns=60_000, reason="host collective")
    b.kernel(0, 73_000, 100)
    new = replay(b.run, CLUSTER)
    assert new.ranks[1].wait_end_ns[1] == 52_000
    assert new.ranks[0].wait_end_ns[1] == 112_000
    assert new.ranks[0].start_ns[0] == 113_000


def test_a_thread_begins_when_it_is_started_and_ends_before_it_is_joined():
    b = RunBuilder(1)
    row = b.kernel(0, 1_000, 30_000)
    b.recorded(0, row, 1_000, 11_000)
    b.wait(0, 2_000, 11_000, rows=(row,))
    start = b.wait(0, 11_000, 11_000, reason="point")
    b.wait(0, 11_000, 11_000, peers=(start,), thread=1, reason="thread start")
    own = b.kernel(0, 14_000, 500, stream=5, thread=1)
    b.recorded(0, own, 14_000, 14_500)
    end = b.wait(0, 20_000, 20_000, thread=1, reason="point")
    b.wait(0, 12_000, 20_000, peers=(end,), reason="thread join")
    b.kernel(0, 21_000, 100)
    new = replay(b.run, CLUSTER).ranks[0]
    assert new.start_ns[own] == 34_000
    assert new.start_ns[2] == 41_000


def test_threads_keep_the_order_of_a_stream_that_they_share():
    b = RunBuilder(1)
    for i, (thread, start_ns) in enumerate(((1, 5_000), (0, 6_000), (1, 7_000), (0, 8_000))):
        b.recorded(0, b.kernel(0, 4_000 + i, 1_000, thread=thread), start_ns, start_ns + 1_000)
    assert [start for start, _ in spans(replay(b.run, CLUSTER).ranks[0])] == [4_000, 5_000, 6_000, 7_000]


def test_a_collective_begins_with_its_last_member_and_one_communicator_runs_one_at_a_time():
    b = RunBuilder(2)
    world = b.group("world", (0, 1))
    first, second = b.collective(world), b.collective(world, "all_gather", 4 * MIB)
    for rank, issue_ns in ((0, 1_000), (1, 90_000)):
        b.launch(rank, issue_ns, (first,), stream=7)
        b.launch(rank, issue_ns + 1, (second,), stream=8)
    new = replay(b.run, CLUSTER)
    took = [collective_ns(b.run, first), collective_ns(b.run, second)]
    assert [(c.start_ns, c.end_ns) for c in new.collectives] == [
        (90_000, 90_000 + took[0]), (90_000 + took[0], 90_000 + sum(took)),
    ]  # fmt: skip
    assert new.ranks[0].start_ns[0] == 1_000 and new.collectives[0].algorithm


def test_without_a_stream_dependencies_alone_order():
    """A diamond: b and c overlap although one rank has them, d waits for both."""
    b = RunBuilder(1, source="chakra")
    a = b.kernel(0, 0, 1_000, stream=NO_STREAM)
    left = b.kernel(0, 0, 5_000, stream=NO_STREAM, after=(a,))
    right = b.kernel(0, 0, 9_000, stream=NO_STREAM, after=(a,))
    b.kernel(0, 0, 100, stream=NO_STREAM, after=(left, right))
    assert spans(replay(b.run, CLUSTER).ranks[0]) == [(0, 1_000), (1_000, 6_000), (1_000, 10_000), (10_000, 10_100)]


def test_rows_may_come_in_any_order():
    b = RunBuilder(1, source="chakra")
    b.kernel(0, 0, 1_000, stream=NO_STREAM, after=(1,))
    b.kernel(0, 0, 2_000, stream=NO_STREAM)
    assert spans(replay(b.run, CLUSTER).ranks[0]) == [(2_000, 3_000), (0, 2_000)]


def test_work_of_the_cpu_holds_device_work_back():
    b = RunBuilder(1, source="kineto")
    row = b.kernel(0, 0, 8_000, stream=4, device=HOST_DEVICE)
    b.kernel(0, 0, 1_000, after=(row,))
    assert spans(replay(b.run, CLUSTER).ranks[0]) == [(0, 8_000), (8_000, 9_000)]


def test_measured_rows_keep_their_own_durations():
    b = RunBuilder(1, source="kineto", are_measured=True)
    b.recorded(0, b.kernel(0, 0, 1), 50, 950)
    assert spans(replay(b.run, CLUSTER).ranks[0]) == [(0, 900)]


def test_stragglers_of_the_cluster_are_applied_once(tmp_path):
    path = tmp_path / "slow.toml"
    path.write_text('base = "dgx-h100"\n[[straggler]]\nrank = 0\nfactor = 2.0\nwhat = "gpu"\n')
    from phantora.cluster import load_cluster

    b = RunBuilder(1, are_measured=True)
    b.kernel(0, 0, 1_000)
    new = replay(b.run, load_cluster(path))
    assert spans(new.ranks[0]) == [(0, 2_000)] and any("stragglers" in note for note in new.notes)
    again = replay(new, load_cluster(path))
    assert spans(again.ranks[0]) == [(0, 2_000)]


def test_a_replay_of_a_replay_changes_nothing():
    b = RunBuilder(2, are_measured=True)
    world = b.group("world", (0, 1))
    for rank in (0, 1):
        for i in range(10):
            row = b.kernel(rank, 2_000 * i + 100 * rank, 3_000)
            b.launch(rank, 2_000 * i + 500, (i,), after=(row,))
    for _ in range(10):
        b.collective(world)
    once = replay(b.run, CLUSTER)
    twice = replay(once, CLUSTER)
    twice.wall_s = once.wall_s
    assert twice == once


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_contention_is_that_of_a_live_run(factor):
    from phantora.network.contention import ContentionModel

    b = RunBuilder(2)
    world = b.group("world", (0, 1))
    number = b.collective(world, size_bytes=64 * MIB)
    for rank in (0, 1):
        b.launch(rank, 1_000, (number,))
        b.kernel(rank, 2_000, 10_000)
    model = ContentionModel(compute_factor=factor, collective_factor=1.0)
    new = replay(b.run, CLUSTER, ReplayOptions(contention=model))
    assert spans(new.ranks[0])[1] == (2_000, 2_000 + round(10_000 * factor))
    assert new.contention == (factor, 1.0) and sum("contention" in note for note in new.notes) == 1


def test_waits_without_causes_take_as_long_again():
    """Older runs say when a host was blocked, but not by what."""
    b = RunBuilder(1, are_measured=True)
    b.kernel(0, 1_000, 500)
    trace = b.run.ranks[0]
    trace.wait_begin_ns.append(2_000)
    trace.wait_end_ns.append(9_000)
    trace.wait_reason.append("device")
    b.kernel(0, 10_000, 500)
    new = replay(b.run, CLUSTER).ranks[0]
    assert list(new.start_ns) == [1_000, 10_000] and list(new.wait_end_ns) == [9_000]


def test_new_prices_leave_measured_times_alone():
    """An imported run has a cluster, too: a kernel whose price is as before took what was measured, not the median of its kind."""
    b = RunBuilder(1, are_measured=True)
    rows = [b.kernel(0, 1000 * i, 100) for i in range(3)]
    trace = b.run.ranks[0]
    for row, took in zip(rows, (100, 300, 50)):
        trace.start_ns[row], trace.end_ns[row] = 1000 * row, 1000 * row + took
    new = replay(b.run, CLUSTER, ReplayOptions(reprice=True))
    assert [e - s for s, e in zip(new.ranks[0].start_ns, new.ranks[0].end_ns)] == [100, 300, 50]
