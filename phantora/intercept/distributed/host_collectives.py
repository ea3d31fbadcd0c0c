"""Collectives on CPU tensors (the `gloo` backend): the data are real and travel through the engine.

Reductions are computed by every member from all payloads in rank order, so all of them get the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phantora.intercept import session
from phantora.intercept.distributed import host_work, kernels, reductions
from phantora.intercept.distributed.contents import Payloads, bytes_of, size_bytes, tensor_from
from phantora.intercept.distributed.groups import Group
from phantora.intercept.distributed.host_work import Apply
from phantora.intercept.distributed.kernels import only
from phantora.intercept.distributed.launches import DONE, dtype_and_count


def _choose(name: str, group: Group, kernel: kernels.Kernel) -> kernels.Kernel:
    if "gloo" not in group.backends:
        raise RuntimeError("No backend type associated with device type cpu")
    return kernel


kernel = kernels.KernelSet("CPU", _choose)
install = kernel.install


# ------------------------------------------------------------------ one call


def call(
    group: Group,
    kind: str,
    payload: bytes | None,
    like: Sequence[Tensor],
    apply: Apply,
    results: Sequence[Tensor],
    async_op: bool,
    root: int = 0,
    reduce_op: str = "",
    num_bytes: int | None = None,
) -> Any:
    """Post this member's part; wait now, or when somebody waits for the Work that is returned (boxed).

    like: the tensors whose dtype and number of elements all members must agree on; none where they may differ.
    num_bytes: what the transfer takes its time for, when not this member's payload.
    """
    if group.size == 1:
        apply([payload])
        return host_work.completed(results) if async_op else DONE
    dtype = dtype_and_count(like[0])[0] if like else None
    count = sum(dtype_and_count(tensor)[1] for tensor in like) if like else None
    size = len(payload or b"") if num_bytes is None else num_bytes
    seq = group.main.next_host_call()
    post(
        group.main.name, group.ranks, seq, kind, payload, size, dtype=dtype, count=count, root=root, reduce_op=reduce_op
    )
    fetch = host_work.fetcher(group.main.name, group.ranks, seq, apply)
    if async_op:
        return host_work.pending(fetch, results)
    fetch()
    return DONE


def post(
    name: str, ranks: tuple[int, ...], seq: Any, kind: str, payload: bytes | None, size: int, **fields: Any
) -> None:
    if not session.is_connected():
        raise RuntimeError(f"{kind} on a process group of {len(ranks)} ranks in a process that is not a simulated rank")
    stack = session.stack_id()
    session.note(
        "host_post", group=name, ranks=ranks, seq=seq, kind=kind, payload=payload, bytes=size, stack=stack, **fields
    )


def join(tensors: Sequence[Tensor]) -> bytes:
    return b"".join(bytes_of(tensor) for tensor in tensors)


def write(tensors: Sequence[Tensor], data: bytes | None) -> None:
    """Fill tensors, one after another, from bytes."""
    position = 0
    for tensor in tensors:
        end = position + size_bytes(tensor)
        if data is None or end > len(data):
            raise RuntimeError("a member of the process group sent fewer bytes than this rank expects")
        if end > position:
            tensor.copy_(tensor_from(data[position:end], tensor.dtype).view(tensor.shape))
        position = end


def write_reduced(tensors: Sequence[Tensor], payloads: Payloads, operation: str, begin: int = 0) -> None:
    """Fill tensors from the reduction of what lies at `begin` in each payload."""
    for tensor in tensors:
        end = begin + size_bytes(tensor)
        if end > begin:
            values = [tensor_from(data[begin:end], tensor.dtype) for data in payloads if data is not None]
            tensor.copy_(reductions.reduce(values, operation).view(tensor.shape))
        begin = end


def reduction(reduce_op: Any) -> str:
    operation = reductions.name_of(reduce_op)
    if not reductions.is_computable(operation):
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    return operation


# ------------------------------------------------------------------ all_reduce, reduce, broadcast


def _all_reduce(tensors: list[Tensor], group: Group, reduce_op: Any, async_op: bool) -> Any:
    operation = reduction(reduce_op)

    def apply(payloads: Payloads) -> None:
        write_reduced(tensors, payloads, operation)

    return call(group, "all_reduce", join(tensors), tensors, apply, tensors, async_op, reduce_op=operation)


@kernel
def allreduce_(
    tensors: list[Tensor],
    group: Group,
    reduce_op: Any,
    sparse_indices: Any = None,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    return tensors, _all_reduce(tensors, group, reduce_op, async_op)


@kernel
def allreduce_coalesced_(
    tensors: list[Tensor], group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    return _all_reduce(tensors, group, reduce_op, async_op)


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
    operation = reduction(reduce_op)

    def apply(payloads: Payloads) -> None:
        if group.rank == root_rank:
            write_reduced(tensors, payloads, operation)

    return call(group, "reduce", join(tensors), tensors, apply, tensors, async_op, root=root_rank, reduce_op=operation)


@kernel
def broadcast_(
    tensors: list[Tensor], group: Group, root_rank: int, root_tensor: int = 0, async_op: bool = True, timeout: int = -1
) -> Any:
    is_root = group.rank == root_rank

    def apply(payloads: Payloads) -> None:
        if not is_root:
            write(tensors, payloads[root_rank])

    payload = join(tensors) if is_root else None
    return tensors, call(group, "broadcast", payload, tensors, apply, tensors, async_op, root=root_rank)


# ------------------------------------------------------------------ all_gather, gather


def _all_gather(per_member: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], group: Group, async_op: bool) -> Any:
    """per_member[i]: where what member i sends is written."""

    def apply(payloads: Payloads) -> None:
        for outputs, data in zip(per_member, payloads):
            write(outputs, data)

    results = [output for outputs in per_member for output in outputs]
    size = sum(map(size_bytes, inputs)) * group.size
    return call(group, "all_gather", join(inputs), inputs, apply, results, async_op, num_bytes=size)


def _rows(tensor: Tensor, group: Group) -> list[Tensor]:
    """A contiguous tensor cut into equal flat pieces, one per member."""
    return list(tensor.view(-1).chunk(group.size)) if tensor.numel() else [tensor] * group.size


@kernel
def allgather_(
    output_lists: list[list[Tensor]], inputs: list[Tensor], group: Group, async_op: bool = True, timeout: int = -1
) -> Any:
    return output_lists, _all_gather([[output] for output in only(output_lists)], inputs, group, async_op)


@kernel
def _allgather_base_(output: Tensor, input: Tensor, group: Group, async_op: bool = True, timeout: int = -1) -> Any:
    kernels.check_gathered(output, input, group.size)
    return output, _all_gather([[row] for row in _rows(output, group)], [input], group, async_op)


@kernel
def allgather_coalesced_(
    output_lists: list[list[Tensor]], inputs: list[Tensor], group: Group, async_op: bool = True
) -> Any:
    return _all_gather(output_lists, inputs, group, async_op)


@kernel
def allgather_into_tensor_coalesced_(
    outputs: list[Tensor], inputs: list[Tensor], group: Group, async_op: bool = True
) -> Any:
    per_output = [_rows(output, group) for output in outputs]
    return _all_gather([list(rows) for rows in zip(*per_output)], inputs, group, async_op)


# ------------------------------------------------------------------ reduce_scatter


def _reduce_scatter(
    outputs: list[Tensor], per_output: Sequence[Sequence[Tensor]], group: Group, reduce_op: Any, async_op: bool
) -> Any:
    """per_output[k][i]: this member's contribution to output k of member i."""
    operation = reduction(reduce_op)
    in_order = [pieces[member] for member in range(group.size) for pieces in per_output]
    begin = sum(size_bytes(pieces[member]) for member in range(group.rank) for pieces in per_output)

    def apply(payloads: Payloads) -> None:
        write_reduced(outputs, payloads, operation, begin)

    return call(group, "reduce_scatter", join(in_order), in_order, apply, outputs, async_op, reduce_op=operation)


@kernel
def reduce_scatter_(
    outputs: list[Tensor],
    input_lists: list[list[Tensor]],
    group: Group,
    reduce_op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    return outputs, _reduce_scatter(outputs, input_lists, group, reduce_op, async_op)


@kernel
def _reduce_scatter_base_(
    output: Tensor, input: Tensor, group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    kernels.check_scattered(output, input, group.size)
    return output, _reduce_scatter([output], [_rows(input.contiguous(), group)], group, reduce_op, async_op)


@kernel
def reduce_scatter_tensor_coalesced_(
    outputs: list[Tensor], inputs: list[Tensor], group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    per_output = [_rows(input.contiguous(), group) for input in inputs]
    return _reduce_scatter(outputs, per_output, group, reduce_op, async_op)
