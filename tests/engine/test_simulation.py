"""The engine against hand-computed timelines; the network is a stand-in with a fixed time for every operation."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from harness import Harness

from phantora.engine.protocol import Kind
from phantora.engine.simulation import State
from phantora.errors import SimulationError


def test_kernel_starts_at_launch_or_end_of_stream() -> None:
    h = Harness(1)
    h.signature(0, 0, 100)
    for host_ns in (10, 20, 500):
        h.record(0, Kind.OP, host_ns, 0, 0)
    trace = h.simulation.ranks[0].timeline.trace
    assert list(trace.start_ns) == [10, 110, 500]
    assert list(trace.end_ns) == [110, 210, 600]


def test_event_makes_another_stream_wait() -> None:
    h = Harness(1)
    h.signature(0, 0, 100)
    h.record(0, Kind.OP, 10, 0, 0)
    h.record(0, Kind.EVENT_RECORD, 20, 7, 0)
    h.record(0, Kind.EVENT_WAIT, 30, 7, 5)
    h.record(0, Kind.OP, 40, 0, 5)
    trace = h.simulation.ranks[0].timeline.trace
    assert list(trace.start_ns) == [10, 110]
    assert (list(trace.dependent), list(trace.dependency)) == ([1], [0])


def test_collective_starts_with_the_last_and_ends_together() -> None:
    h = Harness(2, 1000)
    h.collective(0, 100, 0)
    h.collective(1, 300, 0)
    calls = [h.call(rank, "sync", 400, what="stream", device=0, stream=1) for rank in (0, 1)]
    h.simulation.advance()
    assert sorted((rank, m["id"], m["ns"]) for rank, m in h.replies) == [(0, calls[0], 1300), (1, calls[1], 1300)]
    assert [rank.timeline.clock_ns for rank in h.simulation.ranks] == [1300, 1300]
    assert [list(rank.timeline.trace.start_ns) for rank in h.simulation.ranks] == [[100], [300]]


def test_kernels_of_one_communicator_run_one_after_the_other() -> None:
    h = Harness(2, 1000)
    for rank in (0, 1):
        h.collective(rank, 100, 0, stream=1)
        h.collective(rank, 110, 1, stream=2)
        h.call(rank, "sync", 120, what="device", device=0)
    h.simulation.advance()
    trace = h.simulation.ranks[0].timeline.trace
    assert (list(trace.start_ns), list(trace.end_ns)) == ([100, 1100], [1100, 2100])
    assert (list(trace.dependent), list(trace.dependency)) == ([1], [0])


def test_nothing_is_decided_while_a_rank_can_still_act_earlier() -> None:
    h = Harness(3, 1000)
    h.collective(0, 100, 0, ranks=(0, 1))
    h.collective(1, 100, 0, ranks=(0, 1))
    h.call(0, "sync", 100, what="device", device=0)
    h.call(1, "sync", 100, what="device", device=0)
    h.simulation.advance()
    assert h.replies == []  # rank 2 stands at 0 and might begin something
    h.record(2, Kind.EVENT_RECORD, 5000, 1, 0)
    h.simulation.advance()
    assert len(h.replies) == 2


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_result_does_not_depend_on_arrival(order: tuple[int, ...]) -> None:
    h = Harness(3, 1000)
    issue = {0: [(100, 0, (0, 1, 2)), (5000, 1, (0, 1, 2))], 1: [(700, 0, (0, 1, 2)), (900, 1, (0, 1, 2))], 2: [(50, 0, (0, 1, 2)), (60, 1, (0, 1, 2))]}
    for rank in order:
        for host_ns, seq, ranks in issue[rank]:
            h.collective(rank, host_ns, seq, ranks=ranks)
        h.call(rank, "sync", issue[rank][-1][0], what="device", device=0)
        h.simulation.advance()
    assert [rank.timeline.clock_ns for rank in h.simulation.ranks] == [6000, 6000, 6000]


def test_mismatch_names_ranks_calls_and_stacks() -> None:
    h = Harness(2)
    h.collective(0, 100, 0)
    with pytest.raises(SimulationError) as error:
        h.collective(1, 100, 0, kind="broadcast", reduce_op=None)
    text = str(error.value)
    assert "rank 0: all_reduce" in text and "rank 1: broadcast" in text
    assert 'train.py", line 0' in text and 'train.py", line 1' in text


@pytest.mark.parametrize("field,value", [("dtype", "bfloat16"), ("count", 255), ("root", 1), ("reduce_op", "MAX")])
def test_every_compared_field_is_compared(field: str, value: Any) -> None:
    h = Harness(2)
    h.collective(0, 100, 0)
    with pytest.raises(SimulationError, match="differs"):
        h.collective(1, 100, 0, **{field: value})


def test_unjoined_collective_is_reported() -> None:
    h = Harness(2)
    h.collective(0, 100, 0)
    h.call(0, "sync", 100, what="device", device=0)
    h.simulation.advance()
    with pytest.raises(SimulationError) as error:
        h.end(1)
    text = str(error.value)
    assert "joined by ranks [0], not by ranks [1]" in text and "rank 1 has finished" in text and "rank 0 waits" in text


def test_unjoined_collective_that_nobody_waits_for_is_reported_at_the_end() -> None:
    h = Harness(2)
    h.collective(0, 100, 0)
    h.end(0)
    with pytest.raises(SimulationError, match="not by ranks"):
        h.end(1)


def test_collective_with_a_rank_that_has_finished_is_reported_when_it_is_called() -> None:
    h = Harness(2)
    h.end(1)
    with pytest.raises(SimulationError, match="rank 1 has finished"):
        h.collective(0, 100, 0)


@pytest.mark.parametrize("root", [-1, 2])
def test_root_outside_the_group(root: int) -> None:
    h = Harness(2)
    with pytest.raises(SimulationError, match=f"rank 0 called broadcast with root {root}"):
        h.collective(0, 100, 0, kind="broadcast", root=root)


def test_cycle_of_waits_is_a_deadlock() -> None:
    h = Harness(2)
    h.collective(0, 100, 0, ranks=(0, 1), kind="send_recv", src=0, dst=1, is_send=True)
    h.call(0, "sync", 100, what="device", device=0)
    h.call(1, "store_get", 100, key="never")
    with pytest.raises(SimulationError, match="store.get never"):
        h.simulation.advance()


def test_store_wakes_at_the_setter_s_clock() -> None:
    h = Harness(2)
    number = h.call(0, "store_get", 100, key="k")
    h.simulation.advance()
    assert h.replies == []
    h.simulation.note(1, dict(method="store_set", clock_ns=900, key="k", value=b"v"))
    assert h.replies == [(0, {"id": number, "ns": 900, "value": b"v"})]
    assert h.simulation.ranks[0].timeline.clock_ns == 900


def test_adds_are_ordered_by_clock_not_by_arrival() -> None:
    h = Harness(2)
    h.call(1, "store_add", 200, key="n", amount=1)
    h.simulation.advance()
    assert h.replies == []  # rank 0 might still add at an earlier clock
    h.call(0, "store_add", 100, key="n", amount=1)
    h.simulation.advance()
    assert [(rank, m["value"]) for rank, m in h.replies] == [(0, 1)]
    h.record(0, Kind.EVENT_RECORD, 300, 1, 0)
    h.simulation.advance()
    assert [(rank, m["value"]) for rank, m in h.replies] == [(0, 1), (1, 2)]


def test_query_is_answered_for_the_asking_time() -> None:
    h = Harness(2, 1000)
    for rank in (0, 1):
        h.collective(rank, 100, 0)
        h.record(rank, Kind.EVENT_RECORD, 110, 9, 1)
    h.call(1, "sync", 110, what="device", device=0)
    h.call(0, "query", 500, what="event", event=9)
    h.simulation.advance()
    assert [m["done"] for rank, m in h.replies if rank == 0] == [False]
    h.call(0, "query", 1100, what="event", event=9)
    h.simulation.advance()
    assert [m.get("done") for rank, m in h.replies if rank == 0] == [False, True]


def test_contents_travel_with_the_collective() -> None:
    h = Harness(2)
    number = next(h.ids)
    part = dict(kind="all_gather", seq=0, bytes=16, dtype="int64", count=1, root=0, reduce_op=None)
    announce = lambda rank, payload: h.simulation.collective(  # noqa: E731
        rank, {"id": number, "group": "0", "ranks": (0, 1), "stack": 0, "parts": [{**part, "payload": payload}]}
    )
    announce(0, b"a")
    h.call(0, "payload", 100, token=[number, 0])
    h.simulation.advance()
    assert h.simulation.ranks[0].state is State.PAYLOAD and h.replies == []
    announce(1, b"b")
    assert h.replies[0][1]["payloads"] == [b"a", b"b"]
