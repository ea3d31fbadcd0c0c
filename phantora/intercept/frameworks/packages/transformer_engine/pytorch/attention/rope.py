"""Rotary embedding in one kernel forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phantora.intercept.custom_ops import launch_foreign


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, freqs: Tensor) -> Tensor:
        ctx.save_for_backward(freqs)
        out = torch.empty_like(tensor)
        launch_foreign("transformer_engine::fused_rope_forward", [tensor, freqs], [out])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        out = torch.empty_like(grad)
        launch_foreign("transformer_engine::fused_rope_backward", [grad, *ctx.saved_tensors], [out])
        return out, None


def apply_rotary_pos_emb(t: Tensor, freqs: Tensor, tensor_format: str = "sbhd", *_: Any, **__: Any) -> Tensor:
    """Any format: what is read and written is the same."""
    return _Rotate.apply(t, freqs)


def apply_fused_qkv_rotary_pos_emb(*_: Any, **__: Any) -> Any:
    raise NotImplementedError(
        "transformer_engine (stand-in of phantora): rotary embedding of a fused QKV is not modelled"
    )
