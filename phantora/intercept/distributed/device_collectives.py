"""Collectives on CUDA tensors that NCCL has kernels for: what is launched, and where the contents go.

Each kernel mirrors the method of its name in torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.distributed import contents, kernels, reductions
from phantora.intercept.distributed.contents import Decode, size_bytes
from phantora.intercept.distributed.groups import Group
from phantora.intercept.distributed.kernels import only
from phantora.intercept.distributed.launches import Part, dtype_and_count, issue
from phantora.intercept.launching import launch as launch_work


def _choose(name: str, group: Group, kernel: kernels.Kernel) -> kernels.Kernel:
    """A group with Gloo alone takes CUDA tensors too, by way of the host."""
    if "nccl" in group.backends:
        return kernel
    from phantora.intercept.distributed import host_staging

    return host_staging.kernel(name)


kernel = kernels.KernelSet("CUDA", _choose)
install = kernel.install


def mine(tensors: Sequence[Tensor]) -> tuple[bool, bytes | None]:
    """(whether contents travel with these tensors, their known contents)"""
    does_travel = contents.travels(tensors[0].dtype, sum(map(size_bytes, tensors)))
    return does_travel, contents.payload_of(tensors) if does_travel else None


def _sent_by(tensor: Tensor, is_sender: bool) -> tuple[bool, bytes | None]:
    """`mine`, where one member alone sends."""
    does_travel = contents.travels(tensor.dtype, size_bytes(tensor))
    return does_travel, contents.payload_of([tensor]) if does_travel and is_sender else None


# ------------------------------------------------------------------ all_reduce, reduce, broadcast


def _all_reduce_part(tensor: Tensor, operation: str) -> Part:
    dtype, count = dtype_and_count(tensor)
    does_travel, payload = mine([tensor])
    decode = contents.reduced(tensor.dtype, operation) if payload is not None else None
    return Part(
        kind="all_reduce",
        num_bytes=size_bytes(tensor),
        dtype=dtype,
        count=count,
        reduce_op=operation,
        travels=does_travel,
        payload=payload,
        arrivals=((tensor, decode),),
    )


@kernel
def allreduce_(
    tensors: list[Tensor],
    group: Group,
    reduce_op: Any,
    sparse_indices: Any = None,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    tensor = only(tensors)
    kernels.check_contiguous(tensor)
    part = _all_reduce_part(tensor, reductions.name_of(reduce_op))
    return tensors, issue(group, tensor.get_device(), [part], async_op, tensors)


@kernel
def allreduce_coalesced_(
    tensors: list[Tensor], group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    operation = reductions.name_of(reduce_op)
    parts = [_all_reduce_part(tensor, operation) for tensor in tensors]
    return issue(group, tensors[0].get_device(), parts, async_op, tensors)


def _reduce_part(output: Tensor, input: Tensor, operation: str, root: int, is_root: bool) -> Part:
    dtype, count = dtype_and_count(input)
    does_travel, payload = mine([input])
    decode = contents.reduced(input.dtype, operation) if payload is not None else None
    return Part(
        kind="reduce",
        num_bytes=size_bytes(input),
        dtype=dtype,
        count=count,
        root=root,
        reduce_op=operation,
        travels=does_travel,
        payload=payload,
        arrivals=((output, decode),) if is_root else (),
    )


@kernel
def reduce_(
    tensors: list[Tensor],
    group: Group,
    reduce_op: Any,
    root_rank: int,
    root_tensor: int = 0,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    tensor, root = only(tensors), root_rank + root_tensor
    kernels.check_contiguous(tensor)
    part = _reduce_part(tensor, tensor, reductions.name_of(reduce_op), root, group.rank == root)
    return issue(group, tensor.get_device(), [part], async_op, tensors)


def _broadcast_part(output: Tensor, root: int, is_root: bool, input: Tensor | None = None) -> Part:
    """input: what the root sends, when that is not `output` (out of place)."""
    sent = output if input is None else input
    dtype, count = dtype_and_count(sent)
    does_travel, payload = _sent_by(sent, is_root)
    arrives = not is_root or input is not None
    return Part(
        kind="broadcast",
        num_bytes=size_bytes(sent),
        dtype=dtype,
        count=count,
        root=root,
        travels=does_travel,
        payload=payload,
        arrivals=((output, contents.whole(root)),) if arrives else (),
    )


@kernel
def broadcast_(
    tensors: list[Tensor], group: Group, root_rank: int, root_tensor: int = 0, async_op: bool = True, timeout: int = -1
) -> Any:
    tensor, root = only(tensors), root_rank + root_tensor
    kernels.check_contiguous(tensor)
    part = _broadcast_part(tensor, root, group.rank == root)
    return tensors, issue(group, tensor.get_device(), [part], async_op, tensors)


# ------------------------------------------------------------------ all_gather


def _all_gather_part(input: Tensor, size: int, arrivals: Sequence[tuple[Tensor, Decode | None]]) -> Part:
    dtype, count = dtype_and_count(input)
    does_travel, payload = mine([input])
    return Part(
        kind="all_gather",
        num_bytes=size_bytes(input) * size,
        dtype=dtype,
        count=count,
        travels=does_travel,
        payload=payload,
        arrivals=tuple(arrivals),
    )


def _gather_into_one(output: Tensor, input: Tensor, group: Group) -> Part:
    kernels.check_contiguous(output, input)
    kernels.check_gathered(output, input, group.size)
    part = _all_gather_part(input, group.size, [(output, contents.joined)])
    if part.travels and part.payload is None:  # then the whole is unknown, whatever the others send
        return _all_gather_part(input, group.size, [(output, None)])
    return part


@kernel
def _allgather_base_(output: Tensor, input: Tensor, group: Group, async_op: bool = True, timeout: int = -1) -> Any:
    return output, issue(
        group, input.get_device(), [_gather_into_one(output, input, group)], async_op, [output], [input]
    )


@kernel
def allgather_into_tensor_coalesced_(
    outputs: list[Tensor], inputs: list[Tensor], group: Group, async_op: bool = True
) -> Any:
    parts = [_gather_into_one(output, input, group) for output, input in zip(outputs, inputs)]
    return issue(group, inputs[0].get_device(), parts, async_op, outputs, inputs)


@kernel
def allgather_(
    output_lists: list[list[Tensor]], inputs: list[Tensor], group: Group, async_op: bool = True, timeout: int = -1
) -> Any:
    """Outputs of one size: into a flat buffer, and out of it by copies. Of several sizes: one broadcast per member."""
    input, outputs = only(inputs), only(output_lists)
    device = input.get_device()
    if not kernels.have_same_size(outputs):
        sources = [input if member == group.rank else None for member in range(group.size)]
        parts = [_broadcast_part(output, i, i == group.rank, sources[i]) for i, output in enumerate(outputs)]
        return output_lists, issue(group, device, parts, async_op, outputs, inputs)
    input = input.contiguous()
    flat = _flat_like(outputs)
    part = _all_gather_part(input, group.size, [(output, contents.whole(i)) for i, output in enumerate(outputs)])
    boxed = issue(
        group, device, [part], async_op, [flat], [input, *outputs], after=lambda: _copy_pieces(outputs, flat, out=True)
    )
    return output_lists, boxed


def _flat_like(tensors: Sequence[Tensor]) -> Tensor:
    first = tensors[0]
    return torch.empty((len(tensors), first.numel()), dtype=first.dtype, device=first.device)


def _copy_pieces(pieces: Sequence[Tensor], flat: Tensor, out: bool) -> None:
    """The copies between a list and its flat buffer, as device work only: contents come from the collective."""
    for index, piece in enumerate(pieces):
        if piece.numel():
            source, target = (flat[index], piece) if out else (piece, flat[index])
            name = "memcpy_d2d" if piece.is_contiguous() else "aten::copy_"
            launch_work(piece.get_device(), name, ("self", target), ("src", source), mutated=("self",))


@kernel
def allgather_coalesced_(output_lists: Any, inputs: Any, group: Group, async_op: bool = True) -> Any:
    raise NotImplementedError("ProcessGroupNCCL does not support allgather_coalesced")


# ------------------------------------------------------------------ reduce_scatter


def _reduce_scatter_part(output: Tensor, inputs: Sequence[Tensor], operation: str, group: Group) -> Part:
    dtype, count = dtype_and_count(output)
    does_travel, payload = mine(inputs)
    begin = group.rank * size_bytes(output)
    decode = (
        contents.reduced(output.dtype, operation, begin, begin + size_bytes(output)) if payload is not None else None
    )
    return Part(
        kind="reduce_scatter",
        num_bytes=size_bytes(output) * group.size,
        dtype=dtype,
        count=count,
        reduce_op=operation,
        travels=does_travel,
        payload=payload,
        arrivals=((output, decode),),
    )


def _scatter_from_one(output: Tensor, input: Tensor, operation: str, group: Group) -> Part:
    kernels.check_scattered(output, input, group.size)
    return _reduce_scatter_part(output, [input], operation, group)


@kernel
def _reduce_scatter_base_(
    output: Tensor, input: Tensor, group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    part = _scatter_from_one(output, input, reductions.name_of(reduce_op), group)
    return output, issue(group, input.get_device(), [part], async_op, [output], [input])


@kernel
def reduce_scatter_tensor_coalesced_(
    outputs: list[Tensor], inputs: list[Tensor], group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    operation = reductions.name_of(reduce_op)
    parts = [_scatter_from_one(output, input, operation, group) for output, input in zip(outputs, inputs)]
    return issue(group, inputs[0].get_device(), parts, async_op, outputs, inputs)


@kernel
def reduce_scatter_(
    outputs: list[Tensor],
    input_lists: list[list[Tensor]],
    group: Group,
    reduce_op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    """Inputs of one size: copied into a flat buffer first. Of several sizes: one reduce per member."""
    output, inputs, operation = only(outputs), only(input_lists), reductions.name_of(reduce_op)
    kernels.check_contiguous(output)
    device = output.get_device()
    if not kernels.have_same_size(inputs):
        parts = [_reduce_part(output, input, operation, i, i == group.rank) for i, input in enumerate(inputs)]
        return outputs, issue(group, device, parts, async_op, outputs, inputs)
    flat = _flat_like(inputs)
    part = _reduce_scatter_part(output, inputs, operation, group)
    boxed = issue(
        group, device, [part], async_op, outputs, [flat, *inputs], before=lambda: _copy_pieces(inputs, flat, out=False)
    )
    return outputs, boxed
