"""Frames on the socket, forked children, work objects, CUDA graphs."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from armed import arm, records

from phantora.engine.protocol import HEADER, RECORD, Frame, Kind

pytestmark = pytest.mark.torch


@pytest.fixture
def native() -> Iterator[Any]:
    native = arm()
    native.set_device(0)
    native.set_stream(0, 0)
    native.synchronize_device(0)
    native.drain()
    yield native
    native.connect(-1)
    native.set_recording(True)
    native.drain()


@pytest.fixture
def engine(native: Any) -> Iterator[socket.socket]:
    """The other end of the native device's socket."""
    ours, theirs = socket.socketpair()
    native.connect(ours.fileno())
    yield theirs
    native.connect(-1)
    ours.close()
    theirs.close()


def receive(connection: socket.socket, count: int) -> list[tuple[int, bytes]]:
    """The next `count` frames: (type, payload)."""
    frames, stream = [], connection.makefile("rb")
    for _ in range(count):
        length, kind = HEADER.unpack(stream.read(HEADER.size))
        frames.append((kind, stream.read(length - 1)))
    return frames


# ------------------------------------------------------------------ frames


def test_the_layout_of_a_record_is_the_protocols(native: Any) -> None:
    native.emit(int(Kind.MARK), 3, 11, -1, 1 << 40)
    data = native.drain()
    assert len(data) == RECORD.size == 40
    assert RECORD.unpack(data) == (Kind.MARK, 3, 0, native.now_ns(), 11, -1, 1 << 40)


def test_order_on_the_wire_is_the_order_of_calls(native: Any, engine: socket.socket) -> None:
    native.emit(int(Kind.MARK), 0, 1, 0, 0)
    native.send_definition(int(Frame.STRING), b"definition")
    native.emit(int(Kind.MARK), 0, 2, 0, 0)
    native.send_frame(int(Frame.CALL), b"call")
    native.emit(int(Kind.MARK), 0, 3, 0, 0)
    native.flush()
    native.flush()  # nothing pending: no frame
    frames = receive(engine, 4)
    assert [kind for kind, _ in frames] == [Frame.STRING, Frame.RECORDS, Frame.CALL, Frame.RECORDS]
    assert [record.a for record in records(frames[1][1])] == [1, 2]
    assert frames[2][1] == b"call" and [record.a for record in records(frames[3][1])] == [3]


def test_a_full_ring_flushes_itself(native: Any, engine: socket.socket) -> None:
    before = native.num_records()
    received: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: received.extend(receive(engine, 2)))
    reader.start()
    for number in range(2 * 4096 + 5):
        native.emit(int(Kind.MARK), 0, number, 0, 0)
    reader.join()
    assert [len(payload) // RECORD.size for _, payload in received] == [4096, 4096]
    assert native.num_records() - before == 2 * 4096 + 5
    native.flush()
    assert [record.a for record in records(receive(engine, 1)[0][1])] == list(range(2 * 4096, 2 * 4096 + 5))


def test_threads_do_not_mix_their_frames(native: Any, engine: socket.socket) -> None:
    """Frames stay whole, and a blocked send does not hold the GIL: the reader is a thread of this process."""
    received: list[tuple[int, bytes]] = []
    reader = threading.Thread(target=lambda: received.extend(receive(engine, 400)))
    reader.start()

    def send(letter: bytes) -> None:
        for _ in range(100):
            native.send_definition(int(Frame.NOTE), letter * 20_000)

    senders = [threading.Thread(target=send, args=(letter,)) for letter in (b"a", b"b", b"c", b"d")]
    for thread in senders:
        thread.start()
    for thread in (*senders, reader):
        thread.join()
    assert len(received) == 400
    assert all(len(payload) == 20_000 and len(set(payload)) == 1 for _, payload in received)


def test_threads_that_allocate_launch_and_flush_do_not_lock_each_other_out(native: Any, engine: socket.socket) -> None:
    """Frees happen with and without the GIL, a full ring sends from any of them, and the reader needs the GIL too."""
    import torch

    received: list[int] = []

    def read() -> None:
        stream = engine.makefile("rb")
        while header := stream.read(HEADER.size):
            length, kind = HEADER.unpack(header)
            payload = stream.read(length - 1)
            if kind == Frame.NOTE:
                return
            received.append(len(payload) // RECORD.size)

    def work() -> None:
        x = torch.empty(32, 32, device="cuda", requires_grad=True)
        for _ in range(300):
            (x.sin().cos() * 2.0).sum().backward()
            x.grad = None

    before = native.num_records()
    reader = threading.Thread(target=read)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in (reader, *threads):
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    native.flush()
    count = native.num_records() - before
    native.send_frame(int(Frame.NOTE), b"end")
    reader.join(timeout=60)
    assert sum(received) == count > 4 * 300 * 10


def test_when_the_engine_is_gone_calls_raise_and_recording_stops(native: Any, engine: socket.socket) -> None:
    engine.close()
    native.emit(int(Kind.MARK), 0, 1, 0, 0)
    with pytest.raises(ConnectionError, match="engine closed the connection"):
        native.flush()
    assert not native.is_recording()
    with pytest.raises(ConnectionError):
        native.send_frame(int(Frame.NOTE), b"")


# ------------------------------------------------------------------ forked children


def child_says(function: Any) -> bytes:
    """What `function` returns (bytes) in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, function())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        said = stream.read()
    os.waitpid(pid, 0)
    return said


def test_a_child_of_a_rank_is_not_simulated(native: Any, engine: socket.socket) -> None:
    import torch

    native.emit(int(Kind.MARK), 0, 1, 0, 0)

    def child() -> bytes:
        torch.empty(10, device="cuda")
        native.emit(int(Kind.MARK), 0, 2, 0, 0)
        native.flush()
        return b"recording" if native.is_recording() else b"silent" + native.drain()

    assert child_says(child) == b"silent"
    native.flush()
    assert [record.a for record in records(receive(engine, 1)[0][1])] == [1]


def test_a_child_of_the_warm_parent_starts_at_zero(native: Any) -> None:
    native.emit(int(Kind.MARK), 0, 1, 0, 0)
    native.advance_ns(5)

    def child() -> bytes:
        native.emit(int(Kind.MARK), 0, 2, 0, 0)
        return native.drain()

    ((_, _, _, host_ns, a, _, _),) = RECORD.iter_unpack(child_says(child))
    assert (host_ns, a) == (0, 2)


def test_the_engine_sees_the_end_of_a_rank_although_its_child_lives(native: Any) -> None:
    ours, theirs = socket.socketpair()
    native.connect(ours.fileno())
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        theirs.close()
        os.close(write)
        os.read(read, 1)  # lives until the parent lets go
        os._exit(0)
    os.close(read)
    native.connect(-1)
    ours.close()
    theirs.settimeout(10)
    assert theirs.recv(1) == b""
    os.close(write)
    os.waitpid(pid, 0)
    theirs.close()


# ------------------------------------------------------------------ Work


def unboxed(work: Any) -> Any:
    from torch._C._distributed_c10d import Work

    return Work.unbox(work)


def test_waiting_for_work_blocks_the_stream_and_not_the_host(native: Any) -> None:
    import torch

    communication = native.new_stream(0, 0)
    native.set_stream(0, communication)
    native.launch(native.define_signature(1_000_000, 0, 0), 0)
    native.set_stream(0, 0)
    tensor = torch.empty(4, device="cuda")
    now = native.now_ns()
    work = unboxed(native.make_work(0, communication, [tensor], False))
    assert not work.is_completed()
    assert work.wait() and native.now_ns() < now + 10_000
    assert native.stream_state(0, 0)[0] == native.stream_state(0, communication)[0]
    assert work.result()[0].data_ptr() == tensor.data_ptr()


def test_a_barriers_work_blocks_the_host(native: Any) -> None:
    communication = native.new_stream(0, 0)
    native.set_stream(0, communication)
    native.launch(native.define_signature(1_000_000, 0, 0), 0)
    native.set_stream(0, 0)
    end_ns = native.stream_state(0, communication)[0]
    unboxed(native.make_work(0, communication, [], True)).wait()
    assert native.now_ns() == end_ns


def test_a_callback_of_works_future_runs_behind_it(native: Any) -> None:
    import torch

    communication = native.new_stream(0, 0)
    native.set_stream(0, communication)
    native.launch(native.define_signature(1_000_000, 0, 0), 0)
    native.set_stream(0, 0)
    signature = native.define_signature(500, 0, 0)
    tensor = torch.empty(4, device="cuda")
    future = unboxed(native.make_work(0, communication, [tensor], False)).get_future()

    def callback(done: Any) -> Any:
        native.launch(signature, 0)
        return done.value()[0]

    assert future.then(callback).wait().data_ptr() == tensor.data_ptr()
    end_ns = native.stream_state(0, communication)[0]
    assert native.stream_state(0, 0)[0] == end_ns + 500


def test_stashed_inputs_live_until_somebody_waits(native: Any) -> None:
    import torch

    tensor = torch.empty(1 << 20, device="cuda:7")
    boxed = native.make_work(7, 0, [], False)
    native.stash_tensors(boxed, [tensor])
    del tensor
    assert torch.cuda.memory_allocated(7) == 4 << 20
    unboxed(boxed).wait()
    assert torch.cuda.memory_allocated(7) == 0


def test_work_frees_its_events(native: Any) -> None:
    before = native.num_known_events()
    work = native.make_work(0, 0, [], False)
    assert native.num_known_events() > before
    del work
    assert native.num_known_events() == before


# ------------------------------------------------------------------ CUDA graphs


def test_a_replay_issues_the_captured_work_for_one_host_call(native: Any) -> None:
    import torch

    x = torch.empty(64, 64, device="cuda")
    torch.sin(x)  # planned
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    native.drain()
    with torch.cuda.graph(graph):
        captured_on = torch.cuda.current_stream().stream_id
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.sin(x)
        torch.cuda.current_stream().wait_stream(side)
        torch.sin(x)
    assert not [record for record in records(native.drain()) if record.kind == Kind.OP]  # nothing ran yet
    torch.cuda.synchronize()
    native.drain()
    allocated, now = torch.cuda.memory_allocated(), native.now_ns()
    graph.replay()
    found = records(native.drain())
    ops = [record for record in found if record.kind == Kind.OP]
    assert [record.b for record in ops] == [side.stream_id, 0] and captured_on != 0
    assert {record.host_ns for record in found} == {native.now_ns()} and native.now_ns() > now
    assert native.stream_state(0, 0)[0] == native.now_ns() + 20_000  # one after the other: the waits are replayed too
    assert torch.cuda.memory_allocated() == allocated
    events = {record.a for record in found if record.kind == Kind.EVENT_RECORD}
    assert events == {record.a for record in found if record.kind == Kind.EVENT_DESTROY}
    del graph


def test_a_captured_collective_is_issued_anew_by_the_sink(native: Any) -> None:
    import torch

    from phantora.intercept import session

    issued: list[tuple[int, int, int]] = []
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        native.emit(int(Kind.COLLECTIVE), 0, 41, torch.cuda.current_stream().stream_id, 0)
    native.drain()
    native.set_call_cost_ns(int(Kind.COLLECTIVE), 5000, 5000)

    def issue(call: int, device: int, stream: int) -> None:
        now = native.now_ns()
        native.emit(int(Kind.COLLECTIVE), device, call + 1, stream, 0)
        assert native.now_ns() == now  # the graph's launch has paid
        issued.append((call, device, stream))

    previous = getattr(session.sink, "graph_collective", None)
    session.sink.graph_collective = issue
    try:
        graph.replay()
    finally:
        native.set_call_cost_ns(int(Kind.COLLECTIVE), 0, 0)
        session.sink.graph_collective = previous
    assert issued == [(41, 0, 0)]
    assert [record.a for record in records(native.drain()) if record.kind == Kind.COLLECTIVE] == [42]


def test_a_graph_is_captured_on_a_stream_of_its_own(native: Any) -> None:
    import torch

    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().replay()


def test_header_struct_matches_what_native_code_writes() -> None:
    assert HEADER.size == struct.calcsize("<IB") == 5
