"""A rank process's side of its conversation with the engine.

One Unix socket per rank. The native device writes records to it; this module writes definitions and calls, and reads the
replies. Without a connection (tools, tests, auxiliary processes such as DataLoader workers) everything stays local: waits
end when the local timeline says, and the world has one member.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import msgpack

from phantora.compute.call import OpCall, TensorSpec, Value
from phantora.compute.call_json import to_json
from phantora.engine.protocol import HEADER, Frame, Kind

_MAX_STACK_FRAMES = 40
PACKAGE_DIR = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""Files of this package begin so; ends with a separator, or a neighbour 'phantora_x' would seem to be inside."""


class Session:
    """State of one rank process; use the module's functions."""

    def __init__(self) -> None:
        self.rank = 0
        self.world_size = 1
        self.pid = os.getpid()
        self.sock: socket.socket | None = None
        self.pricer: Any = None
        self.speed: Any = None
        self.fetch: Callable[[Any], Any] | None = None
        self.stand_ins: Counter[str] = Counter()
        self.remarks: dict[str, int] = {}
        self.last_words: list[Callable[[], None]] = []
        self.signatures: dict[OpCall, int] = {}
        self.num_signatures = 0
        self.strings: dict[str, int] = {}
        self.stacks: dict[tuple[int, ...], int] = {}
        self.code_objects: list[Any] = []  # keeps ids in `stacks` valid
        self.undelivered: list[tuple[int, bytes]] = []  # definitions made before the connection (in the warm parent)
        self.next_call = 0
        self.replies: dict[int, dict[str, Any]] = {}
        self.reading = False
        self.changed = threading.Condition()
        self.defining = threading.RLock()  # a number and its definition are one step, whichever thread makes it


_session = Session()


def _native() -> Any:
    return sys.modules["phantora_native"]


def attach(sock: socket.socket, rank: int, world_size: int, local_size: int) -> None:
    """Connect this process to the engine, once, as `rank` of `world_size` ranks, `local_size` on each node."""
    s = _session
    s.rank, s.world_size, s.pid, s.sock = rank, world_size, os.getpid(), sock
    s.changed = threading.Condition()
    native = _native()
    hello = {"rank": rank, "pid": os.getpid(), "world_size": world_size, "local_size": local_size}
    native.connect(sock.fileno())
    native.send_definition(int(Frame.HELLO), msgpack.packb(hello))  # before records that may wait already
    for frame, payload in s.undelivered:
        native.send_definition(frame, payload)


def detach_after_fork() -> None:
    """In a forked child of a rank (a DataLoader worker): no connection, no records, real time."""
    s = _session
    if s.sock is not None:
        s.sock = None
        _native().reset_after_fork()
    s.changed, s.reading, s.defining = threading.Condition(), False, threading.RLock()


def set_pricer(pricer: Any) -> None:
    """`pricer.price(OpCall) -> Price` and `pricer.host_ns(OpCall) -> (forward_ns, backward_ns)`."""
    _session.pricer = pricer


def intra_node() -> Any:
    """How the GPUs of a node reach each other (cluster.spec.IntraNodeSpec), as the pricer knows it; None: not known."""
    return getattr(_session.pricer, "intra_node", None)


def set_speed(speed: Any) -> None:
    """`speed.kernel_ns(number, duration_ns)` and `speed.host_ns(cost_ns)` are what this rank needs for what is priced so."""
    assert not _session.num_signatures, "signatures defined before would keep their times"
    _session.speed = speed


def set_fetch(fetch: Callable[[Any], Any]) -> None:
    """`fetch(token)` -> contents of a tensor that a collective filled (CPU uint8 tensor, or None when unknown)."""
    _session.fetch = fetch


def rank() -> int:
    return _session.rank


def world_size() -> int:
    return _session.world_size


def is_connected() -> bool:
    return _session.sock is not None


def is_rank_process() -> bool:
    """Whether this very process (not a forked child of it) is a connected rank."""
    return _session.sock is not None and _session.pid == os.getpid()


# ------------------------------------------------------------------ definitions


def define(frame: int, payload: dict[str, Any]) -> None:
    """Send a definition; it precedes every record that is pushed after this call."""
    data = _packed(payload)
    if _session.sock is None:
        if frame != Frame.COLLECTIVE:
            _session.undelivered.append((int(frame), data))
        return
    _native().send_definition(int(frame), data)


def string_id(text: str) -> int:
    """A number for `text`, for records that name something."""
    with _session.defining:
        known = _session.strings.get(text)
        if known is None:
            known = _session.strings[text] = len(_session.strings)
            define(Frame.STRING, {"id": known, "text": text})
    return known


def stack_id() -> int:
    """A number for the caller's Python stack; equal stacks get equal numbers, so a training loop defines few."""
    key: list[int] = []
    codes: list[Any] = []
    frame = sys._getframe(1)
    while frame is not None and len(codes) < _MAX_STACK_FRAMES:
        code = frame.f_code
        codes.append(code)
        key.append(id(code))
        key.append(frame.f_lineno)
        frame = frame.f_back
    with _session.defining:
        known = _session.stacks.get(tuple(key))
        if known is None:
            known = _session.stacks[tuple(key)] = len(_session.stacks)
            _session.code_objects.extend(codes)
            define(Frame.STACK, {"id": known, "text": _format_stack(codes, key[1::2])})
    return known


def _format_stack(codes: list[Any], lines: list[int]) -> str:
    """Outermost frame first, as tracebacks show it; frames of this package and of its launcher are left out."""
    rows = []
    for code, line in zip(reversed(codes), reversed(lines)):
        name = code.co_filename
        if name.startswith(PACKAGE_DIR) or name.startswith("<frozen"):
            continue
        rows.append(f'  File "{name}", line {line}, in {code.co_name}')
    return "\n".join(rows) or "  (called by the autograd engine, from no Python frame)"


def register_price(call: OpCall) -> int:
    """Price `call` (once) and return its signature id for `phantora_native.launch`."""
    known = _session.signatures.get(call)
    if known is not None:
        return known
    if _session.pricer is None:
        raise RuntimeError("no price model: session.set_pricer() was not called")
    price = _session.pricer.price(call)
    fields = {
        "name": call.name,
        "overload": call.overload,
        "inputs": _tensors(tuple(value for _, value in call.args)),
        "outputs": _tensors(call.outputs),
        "num_kernels": price.num_kernels,
        "source": price.source,
        "flops": price.flops,
        "bytes": price.bytes,
        "family": price.family,
        "draw": [] if price.draw is None else list(astuple(price.draw)),
        "call": json.dumps(to_json(call), separators=(",", ":")),
    }
    number = define_signature(price.duration_ns, _session.pricer.host_ns(call), fields)
    _session.signatures[call] = number
    return number


def price_ns(call: OpCall) -> int:
    """Device time of `call`, which is not launched; 0 without a price model."""
    return 0 if _session.pricer is None else _session.pricer.price(call).duration_ns


def define_signature(duration_ns: int, host_ns: tuple[int, int], fields: dict[str, Any]) -> int:
    """Tell device and engine of a kernel; host_ns: cost of a launch from Python, from the autograd engine."""
    s = _session
    with s.defining:
        if s.speed is not None:
            duration_ns = s.speed.kernel_ns(s.num_signatures, duration_ns)
            host_ns = (s.speed.host_ns(host_ns[0]), s.speed.host_ns(host_ns[1]))
        s.num_signatures += 1
        number = _native().define_signature(duration_ns, *host_ns)
        define(Frame.SIGNATURE, {"id": number, "duration_ns": duration_ns, **fields})
    return number


def _tensors(values: Value) -> list[tuple[str, tuple[int, ...]]]:
    found: list[tuple[str, tuple[int, ...]]] = []
    stack = [values]
    while stack:
        value = stack.pop()
        if isinstance(value, TensorSpec):
            found.append((value.dtype, value.shape))
        elif isinstance(value, tuple):
            stack.extend(reversed(value))
    return found


def _packed(payload: dict[str, Any]) -> bytes:
    """Texts come from scripts and files: one that is no UTF-8 (lone surrogates) is escaped."""
    return msgpack.packb(payload, unicode_errors="backslashreplace")


# ------------------------------------------------------------------ calls


def note(method: str, **fields: Any) -> None:
    """Tell the engine something; no answer."""
    if _session.sock is not None:
        fields["method"], fields["clock_ns"], fields["thread"] = method, _native().now_ns(), _native().thread_domain()
        _native().send_frame(int(Frame.NOTE), _packed(fields))


def call(method: str, **fields: Any) -> dict[str, Any]:
    """Ask the engine and wait for its answer. When the run is aborted meanwhile, this process ends."""
    s = _session
    if s.sock is None:
        raise RuntimeError(f"call {method!r} without a connection to the engine")
    fields["method"], fields["clock_ns"], fields["thread"] = method, _native().now_ns(), _native().thread_domain()
    fields["main"] = threading.current_thread() is threading.main_thread() or not _started_by_python()
    if "stack" not in fields:
        fields["stack"] = stack_id()
    with s.changed:
        number = s.next_call
        s.next_call += 1
    fields["id"] = number
    _native().send_frame(int(Frame.CALL), _packed(fields))
    return _await(number)


def _started_by_python() -> bool:
    """Whether the current thread was made by `threading` (autograd's threads were not)."""
    return not isinstance(threading.current_thread(), threading._DummyThread)


def _await(number: int) -> dict[str, Any]:
    """One waiting thread reads for all; the others sleep until their reply is there."""
    s = _session
    while True:
        with s.changed:
            while s.reading and number not in s.replies:
                s.changed.wait()
            if number in s.replies:
                return s.replies.pop(number)
            s.reading = True
        try:
            reply = _read_reply()
        finally:
            with s.changed:
                s.reading = False
                s.changed.notify_all()
        with s.changed:
            s.replies[reply["id"]] = reply
            s.changed.notify_all()


def _read_reply() -> dict[str, Any]:
    length, frame = HEADER.unpack(_read_exactly(HEADER.size))
    payload = msgpack.unpackb(_read_exactly(length - 1), strict_map_key=False)
    if frame == Frame.ABORT:
        _leave()
    return payload


def _read_exactly(size: int) -> bytes:
    assert _session.sock is not None
    chunks = []
    while size:
        try:
            chunk = _session.sock.recv(size)
        except OSError:
            chunk = b""
        if not chunk:
            _leave()
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _leave() -> None:
    """The run is over (the engine said so, or is gone): end without running the script's handlers."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    _real_exit(70)


_real_exit = os._exit  # before clock_patches replaces it in rank processes


# ------------------------------------------------------------------ accounts


def stand_in(where: str) -> None:
    """Count one read of a value that the simulator cannot know (`where` names the operator and the caller)."""
    _session.stand_ins[where] += 1


def remark(text: str) -> None:
    """Something the report must say, once (such as 'torch.compile: 4 graphs compiled, modelled')."""
    _session.remarks[text] = _session.remarks.get(text, 0) + 1


def before_finish(function: Callable[[], None]) -> None:
    """Call `function` when the rank ends, before its remarks are sent."""
    _session.last_words.append(function)


def finish(exit_code: int, error: str | None = None) -> None:
    """Last words of a rank: everything recorded is delivered, then the exit code with the traceback, if any."""
    if is_rank_process():
        for function in _session.last_words:
            function()
        note("finish", exit_code=exit_code, error=error, stand_ins=dict(_session.stand_ins), remarks=list(_session.remarks))


class Sink:
    """Answers the native device when its local timeline does not know (a collective lies before the point asked for)."""

    def sync_stream(self, device: int, stream: int) -> None:
        self._sync("stream", 0, stream, device=device, stream=stream)

    def sync_event(self, event: int) -> None:
        self._sync("event", 1, event, event=event)

    def sync_device(self, device: int) -> None:
        self._sync("device", 2, device, device=device)

    def _sync(self, what: str, code: int, number: int, **fields: int) -> None:
        native = _native()
        if _session.sock is None:
            return
        begin_ns = native.now_ns()
        reply = call("sync", what=what, **fields)
        for device, stream, end_ns in reply["streams"]:
            native.resolve_stream(device, stream, end_ns)
        if what == "event":
            native.resolve_event(number, reply["ns"])
        native.wait_until_ns(reply["ns"])
        native.emit(int(Kind.HOST_WAIT), fields.get("device", native.device()), begin_ns, code, number)

    def query_stream(self, device: int, stream: int) -> bool:
        return _session.sock is None or call("query", what="stream", device=device, stream=stream)["done"]

    def query_event(self, event: int) -> bool:
        return _session.sock is None or call("query", what="event", event=event)["done"]

    def elapsed(self, first: int, second: int) -> float:
        """Milliseconds between two recorded events, as cudaEventElapsedTime; RuntimeError while one is unfinished."""
        native = _native()
        times = []
        for event in (first, second):
            time_ns, known = native.event_state(event)
            if not known and _session.sock is not None:
                time_ns = call("event_time", event=event)["ns"]
            times.append(time_ns)
        if max(times) > native.now_ns():
            raise RuntimeError("CUDA error: device not ready")
        return (times[1] - times[0]) / 1e6

    def fetch(self, token: int) -> Any:
        return _session.fetch(token) if _session.fetch is not None else None


sink = Sink()
