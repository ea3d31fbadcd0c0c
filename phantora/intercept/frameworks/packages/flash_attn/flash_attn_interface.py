"""The functions of flash-attn 2: [batch, length, heads, head size], or packed [tokens, heads, head size]."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents
from phantora.intercept.frameworks.fused_attention import FusedAttention, Kernel, PackedAttention
from phantora.intercept.frameworks.priced_like import launch_like

_NAME = "flash_attn::flash_attention"


def attend(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """(output, logsumexp) of unpacked tensors."""
    out, sums = FusedAttention.apply(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), kernel)
    return out.transpose(1, 2), sums


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    out, sums = attend(Kernel(name=_NAME, is_causal=causal, dropout=dropout_p), q, k, v)
    return (out, sums, None) if return_attn_probs else out


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], *args, **kwargs)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **kwargs: Any) -> Any:
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], *args, **kwargs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> Any:
    kernel = Kernel(name=_NAME, is_causal=causal, dropout=dropout_p)
    out, sums = PackedAttention.apply(q, k, v, cu_seqlens_q, int(max_seqlen_q), int(max_seqlen_k), kernel)
    return (out, sums, None) if return_attn_probs else out


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **kwargs: Any) -> Any:
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], *args, **kwargs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **kwargs: Any
) -> Any:
    return flash_attn_varlen_func(
        qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **kwargs
    )


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Any = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Any = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Decoding: one kernel that reads, of the cache (in pages: of the pages in block_table), the mean of `cache_seqlens` and what is
    new for each sequence; all of it where the lengths are not known."""
    capacity = k_cache.shape[1] if block_table is None else block_table.shape[1] * k_cache.shape[1]  # pages: [page, size, heads, head size]
    shape = (q.shape[0], _mean_length(cache_seqlens, 0 if k is None else k.shape[1], capacity), *k_cache.shape[2:])
    keys, values = (torch.empty(shape, dtype=cache.dtype, device="meta") for cache in (k_cache, v_cache))
    out = torch.empty_like(q)
    sums = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32, device=q.device)
    operands = (("query", q.transpose(1, 2)), ("key", keys.transpose(1, 2)), ("value", values.transpose(1, 2)))
    launch_like(
        "aten::_scaled_dot_product_flash_attention",
        "flash_attn::flash_attention_with_kvcache",
        *operands,
        ("is_causal", causal),
        ("new", [t for t in (k, v) if t is not None]),
        outputs=(out, sums),
    )
    return (out, sums) if return_softmax_lse else out


def _mean_length(cache_seqlens: Any, num_new: int, capacity: int) -> int:
    """Tokens that a sequence of the batch has on average: what bounds decoding is reading them."""
    lengths = contents.known(cache_seqlens) if isinstance(cache_seqlens, Tensor) else cache_seqlens
    if lengths is None:
        return capacity
    mean = math.ceil(lengths.double().mean().item()) if isinstance(lengths, Tensor) else lengths
    return max(1, min(mean + num_new, capacity))
