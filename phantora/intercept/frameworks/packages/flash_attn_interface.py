"""Stand-in for flash-attn 3 (Hopper): priced as cuDNN's kernels, which reach about the same (Shah et al.,
FlashAttention-3, 2024, fig. 5)."""

from __future__ import annotations

from typing import Any

from flash_attn.flash_attn_interface import attend, flash_attn_with_kvcache
from torch import Tensor

from phantora.intercept.frameworks.fused_attention import Kernel, PackedAttention

__version__ = "3.0.0"
__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
_NAME = "flash_attn_3::flash_attention"


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False, **settings: Any
) -> Any:
    out, sums = attend(Kernel(name=_NAME, backend="cudnn", is_causal=causal), q, k, v)
    return (out, sums) if settings.get("return_attn_probs") or settings.get("return_softmax_lse") else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    **settings: Any,
) -> Any:
    out, sums = PackedAttention.apply(
        q, k, v, cu_seqlens_q, int(max_seqlen_q), int(max_seqlen_k), Kernel(name=_NAME, is_causal=causal)
    )
    return (out, sums) if settings.get("return_attn_probs") or settings.get("return_softmax_lse") else out
