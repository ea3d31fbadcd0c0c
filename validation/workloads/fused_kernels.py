"""The kernels that Megatron fuses, each one launch: scaled causal softmax (its CUDA extension), bias + GeLU and
bias + dropout + residual (TorchScript with nvFuser), and apex's FastLayerNorm. Declared in Triton, so that each costs what
its bytes cost.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def causal_softmax(scores, probs, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(probs + at, tl.load(scores + at))


@triton.jit
def causal_softmax_backward(grads, probs, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(grads + at) * tl.load(probs + at))


@triton.jit
def bias_gelu(x, bias, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(x + at) + tl.load(bias + at))


@triton.jit
def bias_gelu_backward(grads, x, bias, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(grads + at) * tl.load(x + at) + tl.load(bias + at))


@triton.jit
def bias_dropout_add(x, bias, residual, out, mask, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(x + at) + tl.load(bias + at) + tl.load(residual + at))
    tl.store(mask + at, tl.load(x + at))


@triton.jit
def dropout_backward(grads, mask, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(grads + at) * tl.load(mask + at))


@triton.jit
def layer_norm(x, weight, bias, out, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(x + at) * tl.load(weight + at) + tl.load(bias + at))


@triton.jit
def layer_norm_backward(grads, x, weight, out, weight_grad, bias_grad, n: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(out + at, tl.load(grads + at) * tl.load(x + at) * tl.load(weight + at))
    tl.store(weight_grad + at, tl.load(grads + at))
    tl.store(bias_grad + at, tl.load(grads + at))


_GRID, _BLOCK = (108,), 1024


def _lower(square: Tensor) -> Tensor:
    """What a causal row reads: the half of (..., s, s) below the diagonal, as a view of as many elements."""
    return square[..., : square.shape[-2] // 2, :]


class CausalSoftmax(torch.autograd.Function):
    """scaled_upper_triang_masked_softmax: reads what is below the diagonal, writes whole rows (zeros above it)."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        probs = torch.empty_like(scores)
        causal_softmax[_GRID](_lower(scores), probs, n=_BLOCK)
        ctx.save_for_backward(probs)
        return probs

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Tensor:
        (probs,) = ctx.saved_tensors
        out = torch.empty_like(grads)
        causal_softmax_backward[_GRID](_lower(grads), _lower(probs), out, n=_BLOCK)
        return out


class FastLayerNorm(torch.nn.LayerNorm):
    """apex.contrib.layer_norm, which Megatron-LM took for the widths that it has ('persist layer norm'): a row stays on chip,
    so each pass reads and writes its operands once."""

    def forward(self, x: Tensor) -> Tensor:
        return _FastLayerNorm.apply(x, self.weight, self.bias)


class _FastLayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        out = torch.empty_like(x)
        layer_norm[_GRID](x, weight, bias, out, n=_BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        out, weight_grad, bias_grad = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        layer_norm_backward[_GRID](grads, x, weight, out, weight_grad, bias_grad, n=_BLOCK)
        return out, weight_grad, bias_grad


class BiasGelu(torch.autograd.Function):
    """GeLU(x + bias), tanh form; x is kept, not the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, bias)
        out = torch.empty_like(x)
        bias_gelu[_GRID](x, bias, out, n=_BLOCK)
        return out

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor]:
        x, bias = ctx.saved_tensors
        out = torch.empty_like(x)
        bias_gelu_backward[_GRID](grads, x, bias, out, n=_BLOCK)
        return out, out.sum(dim=(0, 1))


class BiasDropoutAdd(torch.autograd.Function):
    """residual + dropout(x + bias). Only the mask is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
        out, mask = torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)
        bias_dropout_add[_GRID](x, bias, residual, out, mask, n=_BLOCK)
        ctx.save_for_backward(mask)
        return out

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (mask,) = ctx.saved_tensors
        out = torch.empty_like(grads)
        dropout_backward[_GRID](grads, mask, out, n=_BLOCK)
        return out, out.sum(dim=(0, 1)), grads
