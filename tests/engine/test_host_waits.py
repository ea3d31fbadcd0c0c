"""What is kept of waiting hosts and of edges between rows, so that a replay elsewhere can wait again."""

from __future__ import annotations

from harness import Harness

from phantora.engine.protocol import RECORD, Kind
from phantora.engine.threads import order_threads

STREAM, EVENT, DEVICE = range(3)


def waits(harness: Harness, rank: int = 0) -> list[tuple]:
    trace = harness.simulation.ranks[rank].timeline.trace
    columns = (
        trace.wait_reason,
        trace.wait_position,
        trace.wait_thread,
        trace.wait_rows,
        trace.wait_peers,
        trace.wait_delay_ns,
    )
    return list(zip(*columns, strict=True))


def edges(harness: Harness, rank: int = 0) -> list[tuple[int, int]]:
    trace = harness.simulation.ranks[rank].timeline.trace
    return list(zip(trace.dependent, trace.dependency, strict=True))


def test_rows_behind_streams_events_and_devices():
    h = Harness(1)
    h.signature(0, 0, 1000)
    h.record(0, Kind.OP, 10, 0, 3)  # row 0
    h.record(0, Kind.OP, 20, 0, 4)  # row 1
    h.record(0, Kind.EVENT_RECORD, 30, 77, 3)
    h.record(0, Kind.OP, 40, 0, 3)  # row 2
    h.record(0, Kind.HOST_WAIT, 1010, 50, EVENT, 77)
    h.record(0, Kind.HOST_WAIT, 2010, 1020, STREAM, 3)
    h.record(0, Kind.HOST_WAIT, 2010, 2010, DEVICE, 0)
    assert waits(h) == [("event", 3, 0, (0,), (), 0), ("stream", 3, 0, (2,), (), 0), ("device", 3, 0, (1, 2), (), 0)]


def test_an_event_on_a_stream_that_only_waits_stands_behind_what_it_waits_for():
    """Stream 4 has no work of its own, but what waits for its event waits for stream 3."""
    h = Harness(1)
    h.signature(0, 0, 1000)
    h.record(0, Kind.OP, 10, 0, 3)
    h.record(0, Kind.EVENT_RECORD, 10, 1, 3)
    h.record(0, Kind.EVENT_WAIT, 10, 1, 4)
    h.record(0, Kind.EVENT_RECORD, 10, 2, 4)
    h.record(0, Kind.EVENT_WAIT, 10, 2, 5)
    h.record(0, Kind.OP, 10, 0, 5)
    assert edges(h) == [(1, 0)]
    h.record(0, Kind.HOST_WAIT, 1010, 20, STREAM, 4)
    assert waits(h)[0][3] == (0,)


def test_edges_do_not_wait_for_evaluation():
    """A row behind a collective that has not begun: its edge is there, and a destroyed event changes nothing."""
    h = Harness(2)
    h.signature(0, 0, 1000)
    h.collective(0, 10, 0, stream=7)
    h.record(0, Kind.EVENT_RECORD, 20, 1, 7)
    h.record(0, Kind.EVENT_WAIT, 20, 1, 3)
    h.record(0, Kind.EVENT_DESTROY, 20, 1)
    h.record(0, Kind.OP, 30, 0, 3)
    assert edges(h) == [(1, 0)]
    assert h.simulation.ranks[0].timeline.trace.start_ns[1] == -1


def test_of_one_source_stream_the_latest_row_counts():
    h = Harness(1)
    h.signature(0, 0, 1000)
    for event in (1, 2):
        h.record(0, Kind.OP, 10, 0, 3)
        h.record(0, Kind.EVENT_RECORD, 10, event, 3)
    for event in (2, 1):
        h.record(0, Kind.EVENT_WAIT, 10, event, 4)
    h.record(0, Kind.OP, 10, 0, 4)
    assert edges(h) == [(2, 1)]


def test_the_store_points_at_who_set_the_key():
    h = Harness(2)
    h.call(0, "store_get", 100, key="k")
    h.simulation.note(1, dict(method="store_set", clock_ns=900, key="k", value=b"v"))
    assert waits(h, 1) == [("point", 0, 0, (), (), 0)]
    assert waits(h, 0) == [("store", 0, 0, (), ((1, 0),), 0)]
    trace = h.simulation.ranks[0].timeline.trace
    assert (trace.wait_begin_ns[0], trace.wait_end_ns[0]) == (100, 900)


def test_additions_follow_one_another():
    h = Harness(2)
    for rank, clock_ns in ((1, 100), (0, 200)):
        h.call(rank, "store_add", clock_ns, key="k", amount=1)
    h.simulation.advance()
    h.end(1)
    h.simulation.advance()
    assert waits(h, 1)[0][4] == () and waits(h, 0)[0][4] == ((1, 0),)


def test_host_collectives_wait_for_all_posts():
    h = Harness(2)
    for rank, clock_ns in ((0, 100), (1, 700)):
        h.simulation.note(
            rank, dict(method="host_post", clock_ns=clock_ns, group="g", ranks=[0, 1], seq=0, kind="barrier", bytes=0)
        )
    h.call(0, "host_fetch", 100, group="g", ranks=[0, 1], seq=0)
    reason, _, _, _, peers, delay_ns = waits(h, 0)[1]
    trace = h.simulation.ranks[0].timeline.trace
    assert (reason, peers) == ("host collective", ((0, 0), (1, 0))) and delay_ns > 0
    assert trace.wait_end_ns[1] == 700 + delay_ns


def test_threads_start_end_and_are_joined():
    h = Harness(1)
    note = h.simulation.note
    note(0, dict(method="thread_start", number=1, clock_ns=50, thread=0))
    note(0, dict(method="thread_end", number=1, clock_ns=900, thread=1))
    note(0, dict(method="thread_join", number=1, clock_ns=900, begin_ns=60, thread=0))
    assert [(w[0], w[2], w[4]) for w in waits(h)] == [
        ("point", 0, ()), ("thread start", 1, ((0, 0),)), ("point", 1, ()), ("thread join", 0, ((0, 2),)),
    ]  # fmt: skip
    assert h.simulation.ranks[0].timeline.clock_ns == 0  # a thread's clock is not the rank's


def test_order_does_not_depend_on_who_came_first():
    """The same two threads, heard of in another order: equal rows and waits."""
    traces = []
    for order in ((0, 1), (1, 0)):
        h = Harness(1)
        h.signature(0, 0, 10)
        for thread in order:
            base = 100 * thread
            h.simulation.records(0, RECORD.pack(Kind.OP, 0, thread, base + 100, 0, 5 + thread, 0))
            h.simulation.records(0, RECORD.pack(Kind.HOST_WAIT, 0, thread, base + 110, base + 105, STREAM, 5 + thread))
            h.simulation.records(0, RECORD.pack(Kind.OP, 0, thread, base + 120, 0, 5 + thread, 0))
        trace = h.simulation.ranks[0].timeline.trace
        order_threads(trace)
        traces.append(trace)
    assert traces[0] == traces[1]
    assert traces[0].wait_rows == [(0,), (2,)] and list(traces[0].wait_position) == [1, 3]


def test_rows_of_two_threads_on_one_stream_keep_the_order_of_their_evaluation():
    """Thread 1 issued at 500 what came first; thread 0's row, issued at 100 of its own clock, ran behind it on the stream."""
    h = Harness(1)
    h.signature(0, 0, 10)
    for thread, host_ns in ((1, 500), (0, 100)):
        h.simulation.records(0, RECORD.pack(Kind.OP, 0, thread, host_ns, 0, 5, 0))
    h.simulation.records(0, RECORD.pack(Kind.OP, 0, 0, 200, 0, 6, 0))
    trace = h.simulation.ranks[0].timeline.trace
    order_threads(trace)
    assert list(trace.issue_ns) == [500, 100, 200] and list(trace.start_ns) == [500, 510, 200]


def test_two_threads_that_wait_for_the_same_row_stand_in_one_order():
    """Threads 2 and 3 issue, at once, what waits for a later row of thread 1."""
    traces = []
    for order in ((2, 3), (3, 2)):
        h = Harness(1)
        h.signature(0, 0, 10)
        h.simulation.records(0, RECORD.pack(Kind.OP, 0, 1, 500, 0, 5, 0))
        h.simulation.records(0, RECORD.pack(Kind.EVENT_RECORD, 0, 1, 501, 9, 5, 0))
        for thread in order:
            h.simulation.records(0, RECORD.pack(Kind.EVENT_WAIT, 0, thread, 100, 9, 5 + thread, 0))
            h.simulation.records(0, RECORD.pack(Kind.OP, 0, thread, 100, 0, 5 + thread, 0))
        trace = h.simulation.ranks[0].timeline.trace
        order_threads(trace)
        traces.append(trace)
    assert traces[0] == traces[1] and list(traces[0].thread) == [1, 2, 3]
