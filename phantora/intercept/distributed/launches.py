"""One NCCL kernel: announced to the engine, recorded on its stream, its outputs expected.

Mirrors ProcessGroupNCCL::collective and ::pointToPoint (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, torch 2.8
and later): with async_op the kernel runs on the communicator's stream, which first waits for the current one; without,
on the current stream, and no Work is made.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch._C import _distributed_c10d as _c10d

from phantora.engine.protocol import Frame, Kind
from phantora.intercept import session
from phantora.intercept.calls import dtype_name
from phantora.intercept.distributed import contents
from phantora.intercept.distributed.groups import Communicator, Group

native: Any = sys.modules["phantora_native"]

# ProcessGroupNCCL returns no Work for synchronous calls. A kernel written in Python must return one: this is done, and
# waiting for it costs nothing.
DONE: Any = _c10d.FakeWork().boxed()  # type: ignore[attr-defined]

StreamWork = Callable[[], None]

_next_call = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One member's part in one operation, as Frame.COLLECTIVE carries it, and what arrives where.

    kind, num_bytes, root: as in network.operation.CommOperation. count: elements that NCCL would be told, None where
    members may differ. arrivals: outputs with the way their contents come from the members' payloads (None: they
    become unknown).
    travels: whether contents are sent along; payload: mine.
    """

    kind: str
    num_bytes: int
    dtype: str
    count: int | None
    root: int = 0
    reduce_op: str = ""
    splits_in: tuple[int, ...] = ()
    splits_out: tuple[int, ...] = ()
    src: int = 0
    dst: int = 0
    is_send: bool = False
    travels: bool = False
    payload: bytes | None = None
    arrivals: tuple[tuple[Tensor, contents.Decode | None], ...] = ()

    def announced(self, communicator: Communicator) -> dict[str, Any]:
        """The part as the engine gets it; takes the next number of the communicator."""
        fields: dict[str, Any] = {
            "kind": self.kind,
            "bytes": self.num_bytes,
            "dtype": self.dtype,
            "count": self.count,
            "root": self.root,
            "reduce_op": self.reduce_op,
            "check": True,
        }
        if self.kind == "all_to_all":
            fields["splits_in"], fields["splits_out"] = self.splits_in, self.splits_out
        if self.kind == "send_recv":
            fields |= {"src": self.src, "dst": self.dst, "is_send": self.is_send}
            fields["seq"] = communicator.next_message(self.src, self.dst)
        else:
            fields["seq"] = communicator.next_call()
        if self.travels:
            fields["payload"] = self.payload
        return fields


def dtype_and_count(tensor: Tensor) -> tuple[str, int]:
    """As NCCL is told: complex numbers travel as pairs of reals (torch.view_as_real)."""
    if tensor.is_complex():
        return dtype_name(tensor.dtype.to_real()), 2 * tensor.numel()
    return dtype_name(tensor.dtype), tensor.numel()


# ------------------------------------------------------------------ issuing


def enter_stream(communicator: Communicator, device: int, async_op: bool) -> int:
    """The stream that the kernel runs on; the communicator's waits for the current one first."""
    current = native.stream(device)
    if not async_op:
        return current
    stream = communicator.stream(device)
    event = native.record_event(device, current)
    native.wait_event(device, stream, event)
    native.destroy_event(device, event)
    return stream


def issue(
    group: Group,
    device: int,
    parts: Sequence[Part],
    async_op: bool,
    results: Sequence[Tensor],
    stash: Sequence[Tensor] = (),
    before: StreamWork | None = None,
    after: StreamWork | None = None,
) -> Any:
    """One kernel of the group's communicator; returns the boxed Work. Inside a coalescing region it is only noted down.

    before, after: device work (copies into and out of flat buffers) issued on the same stream.
    """
    stream = enter_stream(group.main, device, async_op)
    if before is not None:
        _on_stream(before, device, stream)
    if group.coalescing is not None:
        for part in parts:
            group.coalescing.add(part, device, stream, async_op, [*results, *stash])
    else:
        launch(group.main, device, stream, parts)
    if after is not None:
        _on_stream(after, device, stream)
    if group.coalescing is not None or not async_op:
        return DONE
    return work(device, stream, results, stash)


def _on_stream(function: StreamWork, device: int, stream: int) -> None:
    previous = native.set_stream(device, stream)
    try:
        function()
    finally:
        native.set_stream(device, previous)


def work(
    device: int, stream: int, results: Sequence[Tensor], stash: Sequence[Tensor] = (), blocking: bool = False
) -> Any:
    """A boxed Work behind what was last issued on `stream`.

    stash: inputs that must not be freed before somebody waits (ProcessGroupNCCL's TensorShelf). The Work holds them
    behind its results.
    """
    return native.make_work(device, stream, [*results, *stash], blocking)


def launch(communicator: Communicator, device: int, stream: int, parts: Sequence[Part]) -> int:
    """Announce and record one kernel of several parts; returns the number of the call."""
    call = next(_next_call)
    if native.capturing():
        _captured[call] = (communicator, [replace(part, travels=False, payload=None, arrivals=()) for part in parts])
        native.emit(int(Kind.COLLECTIVE), device, call, stream, 0)
        for part in parts:
            _forget_outputs(part)
        return call
    _announce(communicator, device, stream, call, parts)
    for index, part in enumerate(parts):
        _expect_outputs(communicator, call, index, part)
    return call


def _announce(communicator: Communicator, device: int, stream: int, call: int, parts: Sequence[Part]) -> None:
    session.define(
        Frame.COLLECTIVE,
        {
            "id": call,
            "group": communicator.name,
            "ranks": communicator.ranks,
            "stack": session.stack_id(),
            "parts": [part.announced(communicator) for part in parts],
        },
    )
    native.emit(int(Kind.COLLECTIVE), device, call, stream, 0)
    native.mark_unresolved(device, stream)


def _expect_outputs(communicator: Communicator, call: int, index: int, part: Part) -> None:
    alone = communicator.size == 1
    for output, decode in part.arrivals:
        if decode is None or not part.travels:
            contents.forget(output)
        elif alone:
            contents.place(output, decode([part.payload]))
        else:
            contents.expect(output, call, index, decode)


def _forget_outputs(part: Part) -> None:
    for output, _ in part.arrivals:
        contents.forget(output)


# ------------------------------------------------------------------ CUDA graphs

_captured: dict[int, tuple[Communicator, list[Part]]] = {}


def _replay(call: int, device: int, stream: int) -> None:
    """A graph that holds captured call `call` is launched: the same collective again, with new numbers."""
    communicator, parts = _captured[call]
    _announce(communicator, device, stream, next(_next_call), parts)


def install_graph_replay() -> None:
    sink: Any = session.sink
    sink.graph_collective = _replay
