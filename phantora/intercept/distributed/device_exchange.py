"""Collectives on CUDA tensors that torch builds from sends and receives (gather, scatter, all-to-all), and the barrier.

Each kernel mirrors the method of its name in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; NCCL groups the sends
and receives of one call into one kernel (torch/csrc/cuda/nccl.cpp).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import session
from phantora.intercept.distributed import contents, kernels, launches
from phantora.intercept.distributed.contents import Decode, size_bytes
from phantora.intercept.distributed.device_collectives import kernel, mine
from phantora.intercept.distributed.groups import Group
from phantora.intercept.distributed.kernels import only
from phantora.intercept.distributed.launches import Part, dtype_and_count, issue

native: Any = sys.modules["phantora_native"]


@kernel
def gather_(
    output_lists: list[list[Tensor]],
    inputs: list[Tensor],
    group: Group,
    root_rank: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    input, is_root = only(inputs), group.rank == root_rank
    kernels.check_contiguous(input)
    kernels.check_list_on_root(output_lists, is_root, group.size, "output")
    outputs = output_lists[0] if is_root else []
    dtype, count = dtype_and_count(input)
    does_travel, payload = mine([input])
    part = Part(
        kind="gather",
        num_bytes=size_bytes(input) * group.size,
        dtype=dtype,
        count=count,
        root=root_rank,
        travels=does_travel,
        payload=payload,
        arrivals=tuple((output, contents.whole(member)) for member, output in enumerate(outputs)),
    )
    return issue(group, input.get_device(), [part], async_op, outputs, inputs)


@kernel
def scatter_(
    outputs: list[Tensor],
    input_lists: list[list[Tensor]],
    group: Group,
    root_rank: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    output, is_root = only(outputs), group.rank == root_rank
    kernels.check_contiguous(output)
    kernels.check_list_on_root(input_lists, is_root, group.size, "input")
    inputs = input_lists[0] if is_root else []
    dtype, count = dtype_and_count(output)
    does_travel = contents.travels(output.dtype, size_bytes(output) * group.size)
    part = Part(
        kind="scatter",
        num_bytes=size_bytes(output) * group.size,
        dtype=dtype,
        count=count,
        root=root_rank,
        travels=does_travel,
        payload=_packed(inputs) if does_travel and is_root else None,
        arrivals=((output, contents.addressed(root_rank, group.rank)),),
    )
    return outputs, issue(group, output.get_device(), [part], async_op, outputs, inputs)


def _packed(pieces: Sequence[Tensor]) -> bytes | None:
    """Known contents with one piece per member; None when some are unknown."""
    known = [contents.payload_of([piece]) if piece.numel() else b"" for piece in pieces]
    return None if any(data is None for data in known) else contents.pack(known)  # type: ignore[arg-type]


def _all_to_all_part(
    dtype: torch.dtype,
    inputs: Sequence[Tensor],
    sent: list[int],
    received: list[int],
    arrivals: Sequence[tuple[Tensor, Decode]],
) -> Part:
    """sent, received: bytes to and from each member. Sizes differ between members, so each decides about contents."""
    does_travel = contents.travels(dtype, max(sum(sent), sum(received)))
    return Part(
        kind="all_to_all",
        num_bytes=sum(sent),
        dtype=str(dtype).rpartition(".")[2],
        count=None,
        splits_in=tuple(sent),
        splits_out=tuple(received),
        travels=does_travel,
        payload=_packed(inputs) if does_travel else None,
        arrivals=tuple(arrivals),
    )


@kernel
def alltoall_(
    outputs: list[Tensor], inputs: list[Tensor], group: Group, async_op: bool = True, timeout: int = -1
) -> Any:
    kernels.check_contiguous(*outputs, *inputs)
    sent, received = [size_bytes(t) for t in inputs], [size_bytes(t) for t in outputs]
    arrivals = [(output, contents.addressed(member, group.rank)) for member, output in enumerate(outputs)]
    part = _all_to_all_part(outputs[0].dtype, inputs, sent, received, arrivals)
    return outputs, issue(group, outputs[0].get_device(), [part], async_op, outputs, inputs)


@kernel
def alltoall_base_(
    output: Tensor,
    input: Tensor,
    group: Group,
    output_splits: list[int],
    input_splits: list[int],
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    kernels.check_contiguous(output, input)
    sent = kernels.split_rows(input, input_splits, group.size)
    received = kernels.split_rows(output, output_splits, group.size)
    rows = [bytes_ // input.itemsize for bytes_ in sent]
    pieces = (
        list(input.detach().view(-1).split(rows))
        if contents.travels(input.dtype, max(sum(sent), sum(received)))
        else []
    )
    part = _all_to_all_part(input.dtype, pieces, sent, received, [(output, contents.addressed_by_all(group.rank))])
    return issue(group, input.get_device(), [part], async_op, [output], [input])


# ------------------------------------------------------------------ barrier


@kernel
def barrier(
    tensor: Tensor, group: Group, device_ids: Sequence[int] = (), async_op: bool = True, timeout: int = -1
) -> Any:
    """An all-reduce of one float for which the host waits."""
    device = device_ids[0] if device_ids else _guess_device(tensor, group)
    one = torch.zeros(1, dtype=torch.float32, device=torch.device("cuda", device))
    stream = launches.enter_stream(group.main, device, async_op)
    part = Part(kind="barrier", num_bytes=0, dtype="float32", count=1, arrivals=((one, None),))
    launches.launch(group.main, device, stream, [part])
    if async_op:
        return launches.work(device, stream, [one], blocking=True)
    native.synchronize_stream(device, stream)
    return launches.DONE


def _guess_device(tensor: Tensor, group: Group) -> int:
    """As ProcessGroupNCCL::guessDeviceId: the bound device (torch put the tensor there), one in use, one by rank."""
    if group.is_eager:
        return tensor.get_device()
    used = group.main.a_used_device()
    return session.rank() % native.num_devices() if used is None else used
