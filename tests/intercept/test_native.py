"""The native device below Python: streams, threads, events, clocks, the local timeline, generators."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phantora.engine.protocol import Kind
from phantora.intercept import session
from armed import NUM_DEVICES, arm, records

pytestmark = pytest.mark.torch


@pytest.fixture
def native() -> Iterator[Any]:
    """Idle device at a later time than anything so far, nothing pending, no call costs."""
    native = arm()
    native.set_device(0)
    for device in range(NUM_DEVICES):
        native.set_stream(device, 0)
    native.synchronize_device(0)
    native.drain()
    yield native
    native.set_clock_mode(False, 1.0)
    native.set_recording(True)


def kinds(native: Any) -> list[Kind]:
    return [Kind(record.kind) for record in records(native.drain())]


def in_thread(function: Callable[[], Any]) -> Any:
    """What `function` returns or raises in a new thread."""
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(function()))
    thread.start()
    thread.join()
    return box[0]


# ------------------------------------------------------------------ devices and streams


def test_a_thread_starts_on_device_0_and_the_default_stream(native: Any) -> None:
    import torch

    torch.cuda.set_device(2)
    with torch.cuda.stream(torch.cuda.Stream(2)):
        assert in_thread(lambda: (torch.cuda.current_device(), torch.cuda.current_stream().stream_id)) == (0, 0)
        assert torch.cuda.current_device() == 2 and torch.cuda.current_stream().stream_id != 0


def test_an_invalid_device_is_refused_in_cudas_words(native: Any) -> None:
    import torch

    with pytest.raises(RuntimeError, match="CUDA error: invalid device ordinal"):
        torch.cuda.set_device(NUM_DEVICES)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(1, device=f"cuda:{NUM_DEVICES}")


def test_pools_have_32_streams_per_device_and_priority(native: Any) -> None:
    ids = [native.new_stream(1, 0) for _ in range(33)]
    assert len(set(ids)) == 32 and ids[0] == ids[32]
    assert not set(ids) & {native.new_stream(1, -1) for _ in range(32)}


def test_streams_compare_by_identity_of_the_cuda_stream(native: Any) -> None:
    import torch

    stream = torch.cuda.Stream(priority=-1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream and torch.cuda.current_stream() is not stream
    assert stream.priority == -1 and torch.cuda.current_stream().priority == 0


def test_autograd_runs_a_backward_on_its_forwards_stream(native: Any) -> None:
    import torch

    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        loss = (x @ x).sum()
    native.drain()
    loss.backward()
    ops = [record for record in records(native.drain()) if record.kind == Kind.OP]
    assert len([record for record in ops if record.b == side.stream_id]) >= 2  # two products of the backward


# ------------------------------------------------------------------ events


def test_a_record_makes_a_new_event_and_destroys_the_replaced_one(native: Any) -> None:
    import torch

    event = torch.cuda.Event()
    event.record()
    first = event.event_id
    event.record()
    second = event.event_id
    del event
    destroyed = [record.a for record in records(native.drain()) if record.kind == Kind.EVENT_DESTROY]
    assert first != second and destroyed == [first, second]


def test_destroyed_events_leave_the_local_table(native: Any) -> None:
    import torch

    before = native.num_known_events()
    events = [torch.cuda.Event() for _ in range(10)]
    for event in events:
        event.record()
    assert native.num_known_events() == before + 10
    del events, event
    assert native.num_known_events() == before


def test_elapsed_time_is_the_difference_of_the_streams_positions(native: Any) -> None:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    signature = native.define_signature(2_500_000, 0, 0)
    begin.record()
    native.launch(signature, 0)
    end.record()
    with pytest.raises(RuntimeError, match="device not ready"):
        begin.elapsed_time(end)
    end.synchronize()
    assert begin.elapsed_time(end) == 2.5


def test_elapsed_time_refuses_what_cuda_refuses(native: Any) -> None:
    import torch

    timed = torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))
    with pytest.raises(ValueError, match="enable_timing=True"):
        timed.elapsed_time(torch.cuda.Event())


# ------------------------------------------------------------------ the local timeline


def test_work_starts_when_its_stream_is_free(native: Any) -> None:
    now = native.now_ns()
    signature = native.define_signature(1000, 100, 100)
    for _ in range(3):
        native.launch(signature, 0)
    assert native.now_ns() == now + 300
    assert native.stream_state(0, 0) == (now + 100 + 3000, True)


def test_a_wait_joins_two_streams(native: Any) -> None:
    signature = native.define_signature(1000, 0, 0)
    side = native.new_stream(0, 0)
    native.launch(signature, 0)
    native.wait_event(0, side, native.record_event(0, 0))
    native.set_stream(0, side)
    native.launch(signature, 0)
    assert native.stream_state(0, side)[0] == native.stream_state(0, 0)[0] + 1000


def test_synchronizing_moves_the_clock_and_leaves_a_record(native: Any) -> None:
    now = native.now_ns()
    native.launch(native.define_signature(1000, 0, 0), 0)
    native.synchronize_stream(0, 0)
    native.synchronize_stream(0, 0)  # already over: takes no time, but may on another cluster
    assert native.now_ns() == now + 1000
    waits = [record for record in records(native.drain()) if record.kind == Kind.HOST_WAIT]
    assert [(wait.a, wait.host_ns, wait.b, wait.c) for wait in waits] == [
        (now, now + 1000, 0, 0), (now + 1000, now + 1000, 0, 0),
    ]  # fmt: skip


def test_a_device_is_done_when_all_its_streams_are(native: Any) -> None:
    now = native.now_ns()
    native.set_stream(0, native.new_stream(0, 0))
    native.launch(native.define_signature(7000, 0, 0), 0)
    native.synchronize_device(0)
    assert native.now_ns() == now + 7000


def test_a_poll_ends_because_it_costs_time(native: Any) -> None:
    import torch

    native.launch(native.define_signature(50_000, 0, 0), 0)
    event = torch.cuda.Event()
    event.record()
    polls = 0
    while not event.query():
        polls += 1
        assert polls < 1000
    assert polls > 10


class AnsweringSink:
    """Knows when everything ends, as the engine would."""

    def __init__(self, native: Any, end_ns: int) -> None:
        self.native, self.end_ns, self.asked = native, end_ns, []

    def sync_stream(self, device: int, stream: int) -> None:
        self.asked.append(("stream", device, stream))
        self.native.resolve_stream(device, stream, self.end_ns)
        self.native.wait_until_ns(self.end_ns)

    def sync_event(self, event: int) -> None:
        self.asked.append(("event", event))
        self.native.resolve_event(event, self.end_ns)
        self.native.wait_until_ns(self.end_ns)

    def query_event(self, event: int) -> bool:
        self.asked.append(("query", event))
        return self.native.now_ns() >= self.end_ns

    def query_stream(self, device: int, stream: int) -> bool:
        raise KeyError("the engine is gone")


@pytest.fixture
def with_sink(native: Any) -> Iterator[Callable[[Any], None]]:
    """Puts another sink into the place of the session's."""
    import os

    import torch

    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_python.so")

    def use(sink: Any) -> None:
        native.install(NUM_DEVICES, sink, library)

    yield use
    native.install(NUM_DEVICES, session.sink, library)


def test_what_lies_behind_a_collective_is_asked_once(native: Any, with_sink: Callable[[Any], None]) -> None:
    import torch

    sink = AnsweringSink(native, native.now_ns() + 5000)
    with_sink(sink)
    stream, other = native.new_stream(0, 0), native.new_stream(0, 0)
    native.mark_unresolved(0, stream)
    event = native.record_event(0, stream)
    native.wait_event(0, other, event)
    assert not native.stream_state(0, other)[1] and not native.event_state(event)[1]
    torch.cuda.ExternalStream(stream).synchronize()
    assert sink.asked == [("stream", 0, stream)] and native.now_ns() == sink.end_ns
    native.synchronize_stream(0, stream)
    assert len(sink.asked) == 1  # known now
    native.synchronize_event(event)
    assert sink.asked[1:] == [("event", event)] and native.event_state(event) == (sink.end_ns, True)
    native.resolve_stream(0, other, sink.end_ns)


def test_a_resolved_stream_keeps_what_was_queued_behind(native: Any) -> None:
    stream = native.new_stream(0, 0)
    native.mark_unresolved(0, stream)
    native.set_stream(0, stream)
    native.launch(native.define_signature(1_000_000, 0, 0), 0)
    bound = native.stream_state(0, stream)[0]
    native.resolve_stream(0, stream, bound - 10)
    assert native.stream_state(0, stream) == (bound, True)


def test_without_local_answers_the_end_of_a_kernel_is_asked(native: Any, with_sink: Callable[[Any], None]) -> None:
    sink = AnsweringSink(native, native.now_ns() + 5000)
    with_sink(sink)
    stream = native.new_stream(0, 0)
    native.set_stream(0, stream)
    native.set_local_answers(False)
    try:
        native.launch(native.define_signature(1000, 0, 0), 0)
        event = native.record_event(0, stream)
        in_thread(lambda: (native.enter_thread(7, native.now_ns()), native.synchronize_event(event)))
        assert sink.asked == []  # a thread of its own is told the time without contention
        native.synchronize_event(event)
        native.synchronize_stream(0, stream)
        assert sink.asked == [("event", event), ("stream", 0, stream)] and native.now_ns() == sink.end_ns
        native.synchronize_stream(0, stream)
        assert len(sink.asked) == 2
    finally:
        native.set_local_answers(True)


def test_the_allocator_waits_for_a_collective_through_the_sink(native: Any, with_sink: Callable[[Any], None]) -> None:
    """Memory in use by a stream whose end only the engine knows: given back after the engine answered."""
    import torch

    stream = torch.cuda.Stream(4)
    tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda:4")
    sink = AnsweringSink(native, native.now_ns() + 10_000_000)
    with_sink(sink)
    native.mark_unresolved(4, stream.stream_id)
    tensor.record_stream(stream)
    del tensor
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda:4")
    assert torch.cuda.memory_reserved(4) == 128 << 20  # asked before memory grows; not done yet: not reused
    torch.cuda.empty_cache()
    assert [question for question, *_ in sink.asked] == ["query", "event"]
    assert torch.cuda.memory_reserved(4) == 0 and sink.end_ns < native.now_ns() < sink.end_ns + 1_000_000
    native.resolve_stream(4, stream.stream_id, sink.end_ns)


def test_an_event_is_over_when_a_later_one_of_its_stream_is(native: Any, with_sink: Callable[[Any], None]) -> None:
    """Blocks behind a collective are used again, although nobody ever asked for the events that they wait for."""
    import torch

    def use_and_free(count: int) -> None:
        for tensor in [torch.empty(32 << 20, dtype=torch.uint8, device="cuda:5") for _ in range(count)]:
            tensor.record_stream(stream)

    torch.cuda.empty_cache()
    stream = torch.cuda.Stream(5)
    sink = AnsweringSink(native, native.now_ns() + 7000)
    with_sink(sink)
    native.mark_unresolved(5, stream.stream_id)
    use_and_free(4)
    stream.synchronize()
    sink.asked.clear()
    use_and_free(4)
    assert torch.cuda.memory_reserved(5) == 4 * (32 << 20) and sink.asked == []
    native.mark_unresolved(5, stream.stream_id)
    use_and_free(4)  # over at once, as the sink knows: one question each time memory would have grown
    use_and_free(4)
    assert torch.cuda.memory_reserved(5) == 4 * (32 << 20)
    assert {question for question, *_ in sink.asked} == {"query"}
    native.resolve_stream(5, stream.stream_id, sink.end_ns)
    torch.cuda.empty_cache()


def test_an_exception_of_the_sink_reaches_the_caller_as_it_is(native: Any, with_sink: Callable[[Any], None]) -> None:
    import torch

    with_sink(AnsweringSink(native, 0))
    stream = native.new_stream(0, 0)
    native.mark_unresolved(0, stream)
    with pytest.raises(KeyError, match="the engine is gone"):
        torch.cuda.ExternalStream(stream).query()
    with pytest.raises(KeyError, match="the engine is gone"):
        native.query_stream(0, stream)
    native.resolve_stream(0, stream, 0)


def test_a_destroyed_or_unknown_event_counts_as_complete(native: Any) -> None:
    assert native.event_state(1 << 40) == (0, True) and native.query_event(1 << 40)


# ------------------------------------------------------------------ clocks


def test_waiting_never_goes_back(native: Any) -> None:
    now = native.now_ns()
    native.wait_until_ns(now - 5)
    assert native.now_ns() == now
    native.wait_until_ns(now + 5)
    assert native.now_ns() == now + 5


def test_a_python_thread_has_its_own_clock(native: Any) -> None:
    now = native.now_ns()

    def work() -> tuple[int, int]:
        native.enter_thread(7, now + 100)
        native.launch(native.define_signature(10, 50, 50), 0)
        return native.thread_domain(), native.now_ns()

    assert in_thread(work) == (7, now + 150)
    assert native.now_ns() == now
    launched = [record for record in records(native.drain()) if record.kind == Kind.OP]
    assert [(record.thread, record.host_ns) for record in launched] == [(7, now + 150)]


def test_calls_of_the_autograd_engine_cost_their_own(native: Any) -> None:
    """Forward, a native backward, and the same operator called by Python code inside a backward."""
    import torch

    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    for repeat in range(2):  # the first time through Python kernels, the second planned
        y = x.sin()
        native.drain()
        y.backward(torch.empty_like(y))
        times = [record.host_ns for record in records(native.drain()) if record.kind == Kind.OP]
        x.grad = None
        assert [b - a for a, b in zip(times, times[1:])] == [3_000] * (len(times) - 1), repeat

    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            return t.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            before = native.now_ns()
            result = grad.sin()
            ctx.cost_ns = native.now_ns() - before
            costs.append(ctx.cost_ns)
            return result

    costs: list[int] = []
    Recompute.apply(x).backward(torch.empty_like(x))
    assert costs == [5_000]


def test_measured_time_counts_the_threads_cpu_time(native: Any) -> None:
    import time

    native.set_clock_mode(True, 2.0)
    before, cpu = native.now_ns(), time.thread_time_ns()
    sum(range(300_000))
    used = time.thread_time_ns() - cpu
    assert 2 * used * 0.9 <= native.now_ns() - before <= 2 * used * 1.5 + 1_000_000


def test_call_costs_by_kind(native: Any) -> None:
    native.set_call_cost_ns(int(Kind.EVENT_RECORD), 700, 700)
    now = native.now_ns()
    native.record_event(0, 0)
    native.set_call_cost_ns(int(Kind.EVENT_RECORD), 0, 0)
    assert native.now_ns() == now + 700


def test_while_recording_is_off_nothing_happens(native: Any) -> None:
    import torch

    now, count, state = native.now_ns(), native.num_records(), native.stream_state(0, 0)
    native.set_recording(False)
    torch.empty(1000, device="cuda")
    native.launch(native.define_signature(10, 50, 50), 0)
    native.synchronize_device(0)
    native.set_recording(True)
    assert (native.now_ns(), native.num_records(), native.stream_state(0, 0)) == (now, count, state)


# ------------------------------------------------------------------ generators


def test_generators_are_torchs_own_with_a_philox_state(native: Any) -> None:
    import torch

    generator = torch.Generator("cuda")
    assert type(generator) is torch.Generator and generator.device.type == "cuda"
    generator.manual_seed(7)
    generator.set_offset(8)
    assert generator.get_state().view(torch.int64).tolist() == [7, 8]
    clone = generator.clone_state()
    generator.set_offset(16)
    assert (clone.initial_seed(), clone.get_offset()) == (7, 8)
    shared = generator.graphsafe_get_state()
    generator.set_offset(24)
    assert shared.get_offset() == 24


def test_default_generators_follow_manual_seed_and_random_kernels(native: Any) -> None:
    import torch

    torch.manual_seed(123)
    assert torch.cuda.default_generators[3].initial_seed() == 123
    assert torch.cuda.get_rng_state(1).view(torch.int64).tolist() == [123, 0]
    native.philox(1, 5)  # rounded up to a multiple of 4
    assert torch.cuda.get_rng_state(1).view(torch.int64).tolist() == [123, 8]
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.cuda.set_rng_state(torch.zeros(5, dtype=torch.uint8), 1)
