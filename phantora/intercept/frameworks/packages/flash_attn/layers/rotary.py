"""Rotary embedding in one kernel forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phantora.intercept.custom_ops import launch_foreign


class ApplyRotaryEmb(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.num_unused = len(_)
        out = torch.empty_like(x)
        launch_foreign("flash_attn::rotary_forward", [x, cos, sin], [out])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        out = torch.empty_like(grad)
        launch_foreign("flash_attn::rotary_backward", [grad, *ctx.saved_tensors], [out])
        return (out, None, None, *[None] * ctx.num_unused)


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, *settings: Any, **_: Any) -> Tensor:
    return ApplyRotaryEmb.apply(x, cos, sin, *settings)


apply_rotary_emb_func = apply_rotary_emb
