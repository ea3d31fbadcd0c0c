"""Attention as one fused kernel forward and one backward, for packages that bring their own (flash-attn, Transformer
Engine, xformers).

Tensors are [batch, heads, length, head size] views in whatever layout; results take the layout of the query. Priced as
cuDNN's or torch's flash kernels of the same shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.frameworks.priced_like import launch_like

_FORWARD = {"cudnn": "aten::_scaled_dot_product_cudnn_attention", "flash": "aten::_scaled_dot_product_flash_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """name: 'package::kernel'. backend: whose price. is_causal: half of the scores. dropout: its probability."""

    name: str
    backend: str = "flash"
    is_causal: bool = False
    dropout: float = 0.0


def forward(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """(output, logsumexp [batch, heads, length] float32)."""
    out = (
        torch.empty_like(query)
        if value.shape[-1] == query.shape[-1]
        else query.new_empty((*query.shape[:-1], value.shape[-1]))
    )
    sums = torch.empty(query.shape[:-1], dtype=torch.float32, device=query.device)
    operands = (
        ("query", query),
        ("key", key),
        ("value", value),
        ("dropout_p", kernel.dropout),
        ("is_causal", kernel.is_causal),
    )
    launch_like(_FORWARD[kernel.backend], f"{kernel.name}_forward", *operands, outputs=(out, sums))
    return out, sums


def backward(
    kernel: Kernel, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, sums: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value."""
    settings = (("dropout_p", kernel.dropout), ("is_causal", kernel.is_causal))
    priced_as = f"{_FORWARD[kernel.backend]}_backward"
    return _launch_backward(priced_as, kernel, grad, (query, key, value, out, sums), settings)


def _launch_backward(
    priced_as: str, kernel: Kernel, grad: Tensor, saved: tuple[Tensor, ...], settings: tuple[tuple[str, Any], ...]
) -> tuple[Tensor, ...]:
    """saved: query, key, value, output, logsumexp. The gradients of the first three."""
    grads = tuple(torch.empty_like(tensor) for tensor in saved[:3])
    operands = (("grad_out", grad), *zip(("query", "key", "value", "out", "logsumexp"), saved))
    launch_like(priced_as, f"{kernel.name}_backward", *operands, *settings, outputs=grads)
    return grads


class FusedAttention(torch.autograd.Function):
    """apply(query, key, value, Kernel) -> (output, logsumexp)"""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, kernel: Kernel) -> tuple[Tensor, Tensor]:
        out, sums = forward(kernel, query, key, value)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.kernel = kernel
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        return (*backward(ctx.kernel, grad, *ctx.saved_tensors), None)


class PackedAttention(torch.autograd.Function):
    """Sequences of several lengths side by side, [tokens, heads, head size]; priced as sequences of the greatest
    length."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, starts: Tensor, max_q: int, max_k: int, kernel: Kernel
    ) -> tuple[Tensor, Tensor]:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = torch.empty((query.shape[1], query.shape[0]), dtype=torch.float32, device=query.device)
        ctx.settings = (
            ("cum_seq_q", starts),
            ("max_q", max_q),
            ("max_k", max_k),
            ("dropout_p", kernel.dropout),
            ("is_causal", kernel.is_causal),
        )
        operands = (("query", query), ("key", key), ("value", value))
        launch_like(
            "aten::_flash_attention_forward", f"{kernel.name}_forward", *operands, *ctx.settings, outputs=(out, sums)
        )
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.kernel = kernel
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        grads = _launch_backward("aten::_flash_attention_backward", ctx.kernel, grad, ctx.saved_tensors, ctx.settings)
        return (*grads, None, None, None, None)
