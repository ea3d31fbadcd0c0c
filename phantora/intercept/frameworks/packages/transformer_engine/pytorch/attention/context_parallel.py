"""Attention over a sequence that the ranks of a group share: the exchanges, and the partial attentions between them.

* p2p: keys and values travel round a ring, the attention of one block beside the transfer of the next (Liu et al., Ring
  Attention, 2023). Under a causal mask each rank holds one block from the front and one from the back, so all have
  equal work: its own block is causal, earlier ranks' blocks meet with half of the keys, later ones' with half of the
  queries.
* all_gather: every rank gathers all keys and values; their gradients are reduce-scattered (Llama 3, section 3.3.2).
* a2a: heads against sequence in two all-to-alls each way (Jacobs et al., DeepSpeed Ulysses, 2023).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phantora.intercept.custom_ops import launch_foreign
from phantora.intercept.frameworks import fused_attention
from phantora.intercept.frameworks.fused_attention import FusedAttention, Kernel

_CORRECTION = "transformer_engine::attention_correction"


def attention(
    kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, group: Any, stream: Any, exchange: str
) -> Tensor:
    """query, key, value: [batch, heads, local length, head size]; the result as the query."""
    if exchange == "p2p":
        return _Ring.apply(query, key, value, kernel, group)
    if exchange == "all_gather":
        return _Gathered.apply(query, key, value, kernel, group)
    if exchange == "a2a":
        return _exchange_heads(kernel, query, key, value, group)
    raise NotImplementedError(f"transformer_engine (stand-in of phantora): cp_comm_type {exchange!r} is not modelled")


# ------------------------------------------------------------------ ring


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, group: Any) -> Tensor:
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        ctx.kernel, ctx.group = kernel, group
        both = torch.stack((key, value))
        out, sums = torch.empty_like(query), torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
        partials = []
        for step in range(size):
            waiting, following = _pass_on(both, group) if step < size - 1 else ([], both)
            q, k, v, part = _operands(kernel, step, rank, query, both)
            partials.append((fused_attention.forward(part, q, k, v)))
            if step:
                launch_foreign(_CORRECTION, [sums, partials[-1][1]], [sums])
            for work in waiting:
                work.wait()
            both = following
        for part_out, part_sums in partials:
            launch_foreign(_CORRECTION, [part_out, part_sums, sums], [part_out])
        ctx.save_for_backward(query, key, value, out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value, out, sums = ctx.saved_tensors
        size, rank = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        both, grads = torch.stack((key, value)), torch.empty((2, *key.shape), dtype=key.dtype, device=key.device)
        grad_query = torch.empty_like(query)
        for step in range(size):
            # First the keys and values alone, last their gradients alone, which end where they belong; both between.
            sent = both if step == 0 else grads if step == size - 1 else torch.stack((both, grads))
            waiting, following = _pass_on(sent, ctx.group)
            q, k, v, part = _operands(ctx.kernel, step, rank, query, both)
            share = slice(None) if q.shape[2] == query.shape[2] else slice(query.shape[2] // 2, None)
            dq, dk, dv = fused_attention.backward(part, grad[:, :, share], q, k, v, out[:, :, share], sums[:, :, share])
            launch_foreign(_CORRECTION, [grad_query, dq], [grad_query])
            for work in waiting:
                work.wait()
            launch_foreign(_CORRECTION, [grads, dk, dv], [grads])
            if step < size - 1:
                both = following if step == 0 else following[0]
        return grad_query, grads[0].clone(), grads[1].clone(), None, None


def _pass_on(tensor: Tensor, group: Any) -> tuple[list[Any], Tensor]:
    """Send to the next rank of the ring, receive from the previous one."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    received = torch.empty_like(tensor)
    following, previous = (dist.get_global_rank(group, (rank + step) % size) for step in (1, -1))
    operations = [dist.P2POp(dist.isend, tensor, following, group), dist.P2POp(dist.irecv, received, previous, group)]
    return dist.batch_isend_irecv(operations), received


def _operands(
    kernel: Kernel, step: int, rank: int, query: Tensor, both: Tensor
) -> tuple[Tensor, Tensor, Tensor, Kernel]:
    """What meets at one step of the ring."""
    if not kernel.is_causal:
        return query, both[0], both[1], kernel
    if step == 0:
        return query, both[0], both[1], kernel
    full = Kernel(name=kernel.name, backend=kernel.backend, dropout=kernel.dropout)
    half = query.shape[2] // 2
    if step <= rank:  # from an earlier rank: only its first half is visible, to all queries
        return query, both[0][:, :, :half], both[1][:, :, :half], full
    return query[:, :, half:], both[0], both[1], full


# ------------------------------------------------------------------ gathered keys and values


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Kernel, group: Any) -> Tensor:
        ctx.kernel, ctx.group = kernel, group
        all_keys, all_values = (_gather_sequence(tensor, group) for tensor in (key, value))
        ctx.save_for_backward(query, key, value)
        ctx.parts = []
        outs = []
        for part, keys in _two_blocks(query, all_keys.shape[2], kernel, group):
            out, sums = fused_attention.forward(
                kernel, query[:, :, part], all_keys[:, :, :keys], all_values[:, :, :keys]
            )
            ctx.parts.append((part, keys, out, sums))
            outs.append(out)
        return torch.cat(outs, dim=2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        query, key, value = ctx.saved_tensors
        all_keys, all_values = (_gather_sequence(tensor, ctx.group) for tensor in (key, value))
        grads = [torch.zeros_like(all_keys), torch.zeros_like(all_values)]
        grad_queries = []
        for part, keys, out, sums in ctx.parts:
            operands = (query[:, :, part], all_keys[:, :, :keys], all_values[:, :, :keys])
            dq, dk, dv = fused_attention.backward(ctx.kernel, grad[:, :, part], *operands, out, sums)
            grad_queries.append(dq)
            grads[0][:, :, :keys].add_(dk)
            grads[1][:, :, :keys].add_(dv)
        return torch.cat(grad_queries, dim=2), *(_scatter_sequence(g, ctx.group) for g in grads), None, None


def _two_blocks(query: Tensor, length: int, kernel: Kernel, group: Any) -> list[tuple[slice, int]]:
    """(queries, how many keys they see): this rank's block from the front and the one from the back."""
    local, size, rank = query.shape[2], dist.get_world_size(group), dist.get_rank(group)
    if not kernel.is_causal:
        return [(slice(0, local), length)]
    half = local // 2
    return [(slice(0, half), half * (rank + 1)), (slice(half, local), half * (2 * size - rank))]


def _gather_sequence(tensor: Tensor, group: Any) -> Tensor:
    first = tensor.permute(2, 0, 1, 3).contiguous()
    result = first.new_empty((first.shape[0] * dist.get_world_size(group), *first.shape[1:]))
    dist.all_gather_into_tensor(result, first, group=group)
    return result.permute(1, 2, 0, 3)


def _scatter_sequence(tensor: Tensor, group: Any) -> Tensor:
    first = tensor.permute(2, 0, 1, 3).contiguous()
    result = first.new_empty((first.shape[0] // dist.get_world_size(group), *first.shape[1:]))
    dist.reduce_scatter_tensor(result, first, group=group)
    return result.permute(1, 2, 0, 3)


# ------------------------------------------------------------------ heads against sequence


def _exchange_heads(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, group: Any) -> Tensor:
    size = dist.get_world_size(group)
    if key.shape[1] % size:
        raise ValueError(f"cp_comm_type a2a: {key.shape[1]} key heads cannot be shared by {size} ranks")
    spread = (_AllToAll.apply(tensor, 1, 2, group) for tensor in (query, key, value))
    return _AllToAll.apply(FusedAttention.apply(*spread, kernel)[0], 2, 1, group)


class _AllToAll(torch.autograd.Function):
    """Splits dimension `split` among the ranks and joins dimension `join`."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split: int, join: int, group: Any) -> Tensor:
        ctx.settings = (split, join, group)
        size = dist.get_world_size(group)
        sent = torch.stack(tensor.chunk(size, dim=split))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        return torch.cat(received.unbind(0), dim=join)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        split, join, group = ctx.settings
        return _AllToAll.apply(grad, join, split, group), None, None, None
