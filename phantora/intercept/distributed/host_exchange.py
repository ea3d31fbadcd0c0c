"""gather, scatter, all-to-all, barrier, send and recv of CPU tensors (the `gloo` backend)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from phantora.intercept.distributed import contents, host_work, kernels
from phantora.intercept.distributed.contents import Payloads, bytes_of, size_bytes
from phantora.intercept.distributed.groups import Group
from phantora.intercept.distributed.host_collectives import call, join, kernel, post, write
from phantora.intercept.distributed.kernels import only
from phantora.intercept.distributed.launches import dtype_and_count


@kernel
def gather_(
    output_lists: list[list[Tensor]],
    inputs: list[Tensor],
    group: Group,
    root_rank: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    is_root = group.rank == root_rank
    kernels.check_list_on_root(output_lists, is_root, group.size, "output")
    outputs = output_lists[0] if is_root else []

    def apply(payloads: Payloads) -> None:
        for output, data in zip(outputs, payloads):
            write([output], data)

    return call(group, "gather", join(inputs), inputs, apply, outputs, async_op, root=root_rank)


@kernel
def scatter_(
    outputs: list[Tensor],
    input_lists: list[list[Tensor]],
    group: Group,
    root_rank: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    is_root = group.rank == root_rank
    kernels.check_list_on_root(input_lists, is_root, group.size, "input")

    def apply(payloads: Payloads) -> None:
        data = payloads[root_rank]
        write(outputs, None if data is None else contents.unpack(data)[group.rank])

    payload = contents.pack([bytes_of(piece) for piece in input_lists[0]]) if is_root else None
    return outputs, call(group, "scatter", payload, outputs, apply, outputs, async_op, root=root_rank)


def _all_to_all(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], results: list[Tensor], group: Group, async_op: bool
) -> Any:
    """outputs[i]: from member i; inputs[i]: to member i."""

    def apply(payloads: Payloads) -> None:
        for output, data in zip(outputs, payloads):
            write([output], None if data is None else contents.unpack(data)[group.rank])

    payload = contents.pack([bytes_of(piece) for piece in inputs])
    return call(group, "all_to_all", payload, [], apply, results, async_op)


@kernel
def alltoall_(
    outputs: list[Tensor], inputs: list[Tensor], group: Group, async_op: bool = True, timeout: int = -1
) -> Any:
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
def barrier(
    tensor: Tensor, group: Group, device_ids: Sequence[int] = (), async_op: bool = True, timeout: int = -1
) -> Any:
    return call(group, "barrier", b"", [], lambda payloads: None, [], async_op)


@kernel
def monitored_barrier_(
    tensor: Tensor, group: Group, device_ids: Sequence[int] = (), timeout: int = -1, wait_all_ranks: bool = False
) -> None:
    """A rank that does not come is found by the engine, not by a time limit."""
    call(group, "barrier", b"", [], lambda payloads: None, [], async_op=False)


def _transfer(tensors: list[Tensor], group: Group, source: int, destination: int, tag: int) -> Any:
    """Both ends post and fetch: Gloo's send, too, ends only when the receiver has come."""
    ranks = (group.ranks[source], group.ranks[destination])
    seq = ["p2p", tag, group.main.next_message("host", source, destination, tag)]
    is_send = group.rank == source
    dtype, count = dtype_and_count(only(tensors))
    payload = join(tensors) if is_send else None
    post(group.main.name, ranks, seq, "send_recv", payload, sum(map(size_bytes, tensors)), dtype=dtype, count=count)

    def apply(payloads: Payloads) -> None:
        if not is_send:
            write(tensors, payloads[0])

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
