"""send and recv of CUDA tensors.

Mirrors ProcessGroupNCCL::pointToPoint: unbatched calls use a communicator, and so a stream, of their own per pair of
ranks; batched ones (and all, when the communicator was made eagerly) the group's. They always run on a communication
stream.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.distributed import contents, launches
from phantora.intercept.distributed.device_collectives import kernel
from phantora.intercept.distributed.groups import Communicator, Group
from phantora.intercept.distributed.kernels import only
from phantora.intercept.distributed.launches import Part

native: Any = sys.modules["phantora_native"]


def _part(tensor: Tensor, source: int, destination: int, is_send: bool) -> Part:
    dtype, count = launches.dtype_and_count(tensor)
    num_bytes = contents.size_bytes(tensor)
    does_travel = contents.travels(tensor.dtype, num_bytes)
    return Part(
        kind="send_recv",
        num_bytes=num_bytes,
        dtype=dtype,
        count=count,
        src=source,
        dst=destination,
        is_send=is_send,
        travels=does_travel,
        payload=contents.payload_of([tensor]) if does_travel and is_send else None,
        arrivals=() if is_send else ((tensor, contents.whole(0)),),  # payloads are in the order (source, destination)
    )


def _transfer(tensors: list[Tensor], group: Group, peer: int, is_send: bool) -> Any:
    tensor = only(tensors)
    device = tensor.get_device()
    if peer == group.rank:
        raise NotImplementedError("send or recv between a rank and itself is not simulated")
    uses_group = group.is_eager or group.coalescing is not None
    communicator = group.main if uses_group else group.pair(peer)
    me, other = (group.rank, peer) if uses_group else (communicator.rank, 1 - communicator.rank)
    part = _part(tensor, *((me, other) if is_send else (other, me)), is_send)
    stream = launches.enter_stream(communicator, device, async_op=True)
    _record_stream(tensor, device, stream)
    if group.coalescing is not None:
        group.coalescing.add(part, device, stream, True, tensors)
        return launches.DONE
    return _launch(communicator, device, stream, part, tensors)


def _launch(communicator: Communicator, device: int, stream: int, part: Part, tensors: list[Tensor]) -> Any:
    launches.launch(communicator, device, stream, [part])
    return launches.work(device, stream, tensors)


def _record_stream(tensor: Tensor, device: int, stream: int) -> None:
    """The block must not be given away before the transfer is over, whoever drops the tensor."""
    make: Any = torch.Stream
    tensor.record_stream(make(stream_id=stream, device_index=device, device_type=1))


@kernel
def send(tensors: list[Tensor], group: Group, dst: int, tag: int = 0) -> Any:
    return _transfer(tensors, group, dst, is_send=True)


@kernel
def recv_(tensors: list[Tensor], group: Group, src: int, tag: int = 0) -> Any:
    return _transfer(tensors, group, src, is_send=False)


@kernel
def recv_any_source_(tensors: list[Tensor], group: Group, tag: int = 0) -> Any:
    raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")
