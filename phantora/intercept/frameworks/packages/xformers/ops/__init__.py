"""Stand-in for xformers.ops. Biases: none, a tensor, LowerTriangularMask."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from xformers.ops.fmha import LowerTriangularMask, attn_bias

__all__ = ["LowerTriangularMask", "attn_bias", "memory_efficient_attention", "unbind"]


def memory_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_bias: Any = None,
    p: float = 0.0,
    scale: float | None = None,
    *,
    op: Any = None,
    output_dtype: torch.dtype | None = None,
) -> Tensor:
    """[batch, length, heads, head size], or three dimensions without heads."""
    if attn_bias is not None and not isinstance(attn_bias, (Tensor, LowerTriangularMask)):
        raise NotImplementedError(
            f"xformers (stand-in of phantora): attention bias {type(attn_bias).__name__} is not modelled"
        )
    has_heads = query.dim() == 4
    q, k, v = (t.transpose(1, 2) if has_heads else t.unsqueeze(1) for t in (query, key, value))
    is_causal = isinstance(attn_bias, LowerTriangularMask)
    mask = attn_bias.to(q.dtype) if isinstance(attn_bias, Tensor) else None
    with torch.nn.attention.sdpa_kernel(
        [torch.nn.attention.SDPBackend.FLASH_ATTENTION, torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION]
    ):
        out = F.scaled_dot_product_attention(q, k, v, mask, p, is_causal, scale=scale)
    return out.transpose(1, 2) if has_heads else out.squeeze(1)


def unbind(tensor: Tensor, dim: int) -> tuple[Tensor, ...]:
    return tensor.unbind(dim)
