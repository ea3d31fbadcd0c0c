"""Collectives on CPU tensors (the `gloo` backend): the data are real and travel through the engine.

Reductions are computed by every member from all payloads in rank order, so all of them get the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phantora.intercept import session
from phantora.intercept.distributed import contents, host_work, kernels, reductions
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


def _call(
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
    _post(group.main.name, group.ranks, seq, kind, payload, size, dtype=dtype, count=count, root=root, reduce_op=reduce_op)
    fetch = host_work.fetcher(group.main.name, group.ranks, seq, apply)
    if async_op:
        return host_work.pending(fetch, results)
    fetch()
    return DONE


def _post(name: str, ranks: tuple[int, ...], seq: Any, kind: str, payload: bytes | None, size: int, **fields: Any) -> None:
    if not session.is_connected():
        raise RuntimeError(f"{kind} on a process group of {len(ranks)} ranks in a process that is not a simulated rank")
    stack = session.stack_id()
    session.note("host_post", group=name, ranks=ranks, seq=seq, kind=kind, payload=payload, bytes=size, stack=stack, **fields)


def _join(tensors: Sequence[Tensor]) -> bytes:
    return b"".join(bytes_of(tensor) for tensor in tensors)


def _write(tensors: Sequence[Tensor], data: bytes | None) -> None:
    """Fill tensors, one after another, from bytes."""
    position = 0
    for tensor in tensors:
        end = position + size_bytes(tensor)
        if data is None or end > len(data):
            raise RuntimeError("a member of the process group sent fewer bytes than this rank expects")
        if end > position:
            tensor.copy_(tensor_from(data[position:end], tensor.dtype).view(tensor.shape))
        position = end


def _write_reduced(tensors: Sequence[Tensor], payloads: Payloads, operation: str, begin: int = 0) -> None:
    """Fill tensors from the reduction of what lies at `begin` in each payload."""
    for tensor in tensors:
        end = begin + size_bytes(tensor)
        if end > begin:
            values = [tensor_from(data[begin:end], tensor.dtype) for data in payloads if data is not None]
            tensor.copy_(reductions.reduce(values, operation).view(tensor.shape))
        begin = end


def _reduction(reduce_op: Any) -> str:
    operation = reductions.name_of(reduce_op)
    if not reductions.is_computable(operation):
        raise RuntimeError("Cannot use ReduceOp.PREMUL_SUM with Gloo")
    return operation


# ------------------------------------------------------------------ all_reduce, reduce, broadcast


def _all_reduce(tensors: list[Tensor], group: Group, reduce_op: Any, async_op: bool) -> Any:
    operation = _reduction(reduce_op)

    def apply(payloads: Payloads) -> None:
        _write_reduced(tensors, payloads, operation)

    return _call(group, "all_reduce", _join(tensors), tensors, apply, tensors, async_op, reduce_op=operation)


@kernel
def allreduce_(
    tensors: list[Tensor], group: Group, reduce_op: Any, sparse_indices: Any = None, async_op: bool = True, timeout: int = -1
) -> Any:
    return tensors, _all_reduce(tensors, group, reduce_op, async_op)


@kernel
def allreduce_coalesced_(tensors: list[Tensor], group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1) -> Any:
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
    operation = _reduction(reduce_op)

    def apply(payloads: Payloads) -> None:
        if group.rank == root_rank:
            _write_reduced(tensors, payloads, operation)

    return _call(group, "reduce", _join(tensors), tensors, apply, tensors, async_op, root=root_rank, reduce_op=operation)


@kernel
def broadcast_(
    tensors: list[Tensor], group: Group, root_rank: int, root_tensor: int = 0, async_op: bool = True, timeout: int = -1
) -> Any:
    is_root = group.rank == root_rank

    def apply(payloads: Payloads) -> None:
        if not is_root:
            _write(tensors, payloads[root_rank])

    payload = _join(tensors) if is_root else None
    return tensors, _call(group, "broadcast", payload, tensors, apply, tensors, async_op, root=root_rank)


# ------------------------------------------------------------------ all_gather, gather


def _all_gather(per_member: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], group: Group, async_op: bool) -> Any:
    """per_member[i]: where what member i sends is written."""

    def apply(payloads: Payloads) -> None:
        for outputs, data in zip(per_member, payloads):
            _write(outputs, data)

    results = [output for outputs in per_member for output in outputs]
    size = sum(map(size_bytes, inputs)) * group.size
    return _call(group, "all_gather", _join(inputs), inputs, apply, results, async_op, num_bytes=size)


def _rows(tensor: Tensor, group: Group) -> list[Tensor]:
    """A contiguous tensor cut into equal flat pieces, one per member."""
    return list(tensor.view(-1).chunk(group.size)) if tensor.numel() else [tensor] * group.size


@kernel
def allgather_(output_lists: list[list[Tensor]], inputs: list[Tensor], group: Group, async_op: bool = True, timeout: int = -1) -> Any:
    return output_lists, _all_gather([[output] for output in only(output_lists)], inputs, group, async_op)


@kernel
def _allgather_base_(output: Tensor, input: Tensor, group: Group, async_op: bool = True, timeout: int = -1) -> Any:
    kernels.check_gathered(output, input, group.size)
    return output, _all_gather([[row] for row in _rows(output, group)], [input], group, async_op)


@kernel
def allgather_coalesced_(output_lists: list[list[Tensor]], inputs: list[Tensor], group: Group, async_op: bool = True) -> Any:
    return _all_gather(output_lists, inputs, group, async_op)


@kernel
def allgather_into_tensor_coalesced_(outputs: list[Tensor], inputs: list[Tensor], group: Group, async_op: bool = True) -> Any:
    per_output = [_rows(output, group) for output in outputs]
    return _all_gather([list(rows) for rows in zip(*per_output)], inputs, group, async_op)


@kernel
def gather_(
    output_lists: list[list[Tensor]], inputs: list[Tensor], group: Group, root_rank: int, async_op: bool = True, timeout: int = -1
) -> Any:
    is_root = group.rank == root_rank
    kernels.check_list_on_root(output_lists, is_root, group.size, "output")
    outputs = output_lists[0] if is_root else []

    def apply(payloads: Payloads) -> None:
        for output, data in zip(outputs, payloads):
            _write([output], data)

    return _call(group, "gather", _join(inputs), inputs, apply, outputs, async_op, root=root_rank)


# ------------------------------------------------------------------ reduce_scatter, scatter, all_to_all


def _reduce_scatter(outputs: list[Tensor], per_output: Sequence[Sequence[Tensor]], group: Group, reduce_op: Any, async_op: bool) -> Any:
    """per_output[k][i]: this member's contribution to output k of member i."""
    operation = _reduction(reduce_op)
    in_order = [pieces[member] for member in range(group.size) for pieces in per_output]
    begin = sum(size_bytes(pieces[member]) for member in range(group.rank) for pieces in per_output)

    def apply(payloads: Payloads) -> None:
        _write_reduced(outputs, payloads, operation, begin)

    return _call(group, "reduce_scatter", _join(in_order), in_order, apply, outputs, async_op, reduce_op=operation)


@kernel
def reduce_scatter_(
    outputs: list[Tensor], input_lists: list[list[Tensor]], group: Group, reduce_op: Any, async_op: bool = True, timeout: int = -1
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


@kernel
def scatter_(
    outputs: list[Tensor], input_lists: list[list[Tensor]], group: Group, root_rank: int, async_op: bool = True, timeout: int = -1
) -> Any:
    is_root = group.rank == root_rank
    kernels.check_list_on_root(input_lists, is_root, group.size, "input")

    def apply(payloads: Payloads) -> None:
        data = payloads[root_rank]
        _write(outputs, None if data is None else contents.unpack(data)[group.rank])

    payload = contents.pack([bytes_of(piece) for piece in input_lists[0]]) if is_root else None
    return outputs, _call(group, "scatter", payload, outputs, apply, outputs, async_op, root=root_rank)


def _all_to_all(outputs: Sequence[Tensor], inputs: Sequence[Tensor], results: list[Tensor], group: Group, async_op: bool) -> Any:
    """outputs[i]: from member i; inputs[i]: to member i."""

    def apply(payloads: Payloads) -> None:
        for output, data in zip(outputs, payloads):
            _write([output], None if data is None else contents.unpack(data)[group.rank])

    payload = contents.pack([bytes_of(piece) for piece in inputs])
    return _call(group, "all_to_all", payload, [], apply, results, async_op)


@kernel
def alltoall_(outputs: list[Tensor], inputs: list[Tensor], group: Group, async_op: bool = True, timeout: int = -1) -> Any:
    return outputs, _all_to_all(outputs, inputs, outputs, group, async_op)


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
    def cut(tensor: Tensor, splits: list[int]) -> list[Tensor]:
        sizes = kernels.split_rows(tensor, splits, group.size)
        return list(tensor.view(-1).split([size // tensor.itemsize for size in sizes]))

    return _all_to_all(cut(output, output_splits), cut(input.contiguous(), input_splits), [output], group, async_op)


# ------------------------------------------------------------------ barrier, send, recv


@kernel
def barrier(tensor: Tensor, group: Group, device_ids: Sequence[int] = (), async_op: bool = True, timeout: int = -1) -> Any:
    return _call(group, "barrier", b"", [], lambda payloads: None, [], async_op)


@kernel
def monitored_barrier_(
    tensor: Tensor, group: Group, device_ids: Sequence[int] = (), timeout: int = -1, wait_all_ranks: bool = False
) -> None:
    """A rank that does not come is found by the engine, not by a time limit."""
    _call(group, "barrier", b"", [], lambda payloads: None, [], async_op=False)


def _transfer(tensors: list[Tensor], group: Group, source: int, destination: int, tag: int) -> Any:
    """Both ends post and fetch: Gloo's send, too, ends only when the receiver has come."""
    ranks = (group.ranks[source], group.ranks[destination])
    seq = ["p2p", tag, group.main.next_message("host", source, destination, tag)]
    is_send = group.rank == source
    dtype, count = dtype_and_count(only(tensors))
    payload = _join(tensors) if is_send else None
    _post(group.main.name, ranks, seq, "send_recv", payload, sum(map(size_bytes, tensors)), dtype=dtype, count=count)

    def apply(payloads: Payloads) -> None:
        if not is_send:
            _write(tensors, payloads[0])

    return host_work.pending(host_work.fetcher(group.main.name, ranks, seq, apply), tensors)


@kernel
def send(tensors: list[Tensor], group: Group, dst: int, tag: int = 0) -> Any:
    return _transfer(tensors, group, group.rank, dst, tag)


@kernel
def recv_(tensors: list[Tensor], group: Group, src: int, tag: int = 0) -> Any:
    return _transfer(tensors, group, src, group.rank, tag)


@kernel
def recv_any_source_(tensors: list[Tensor], group: Group, tag: int = 0) -> Any:
    raise NotImplementedError("recv from any source is not simulated: name the source")
