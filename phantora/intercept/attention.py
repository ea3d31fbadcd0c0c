"""aten::scaled_dot_product_attention on the simulated GPU: the chosen backend's operators, as attention.cpp calls them.

Registered above autograd, since the operators that it calls have their own derivatives.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.sdpa import Attention, Backend, Operand, can_use_cudnn, can_use_efficient, can_use_flash, choose

_aten = torch.ops.aten
_MASK_ALIGNMENT = 16  # preprocess_mask: elements of the last dimension
_HEAD_DIM_ALIGNMENT = 8
_CUDNN_MASKED = -65504.0  # convert_boolean_attn_mask_cudnn: the lowest float16


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """aten::scaled_dot_product_attention"""
    _validate(query, key, value, attn_mask, is_causal)
    backend = choose(describe(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa))
    if backend is Backend.CUDNN:
        return _cudnn(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if backend is Backend.FLASH:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if backend is Backend.EFFICIENT:
        return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
    if backend is Backend.MATH:
        mask = _additive(attn_mask, query.dtype, -math.inf)
        return _aten._scaled_dot_product_attention_math.default(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    raise RuntimeError("No available kernel. Aborting execution.")


def fused_sdp_choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> int:
    """aten::_fused_sdp_choice"""
    backend = choose(describe(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa))
    if backend is Backend.ERROR:
        raise RuntimeError("No available kernel. Aborting execution.")
    return int(backend)


def describe(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, enable_gqa: bool
) -> Attention:
    """The facts of a call on which the choice depends."""
    return Attention(
        query=Operand.of(query),
        key=Operand.of(key),
        value=Operand.of(value),
        mask=None if mask is None else Operand.of(mask),
        dropout=dropout,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        grad_enabled=torch.is_grad_enabled(),
        capability=torch.cuda.get_device_capability(query.device),
        cudnn_version=torch.backends.cudnn.version() or 0,
    )


def answer_torch_backends_cuda() -> None:
    """torch.backends.cuda.can_use_*: asked by nested tensors and by scripts that look before they leap."""

    def asks(rule: Any) -> Any:
        def can_use(params: Any, debug: bool = False) -> bool:
            operands = (params.query, params.key, params.value, params.attn_mask)
            return rule(describe(*operands, params.dropout, params.is_causal, params.enable_gqa))

        return can_use

    torch._C._can_use_flash_attention = asks(can_use_flash)
    torch._C._can_use_mem_efficient_attention = asks(can_use_efficient)
    torch._C._can_use_cudnn_attention = asks(can_use_cudnn)
    torch._C._is_flash_attention_available = lambda: True


# ------------------------------------------------------------------ backends


def _cudnn(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: float | None
) -> Tensor:
    return _aten._scaled_dot_product_cudnn_attention.default(
        query,
        key,
        value,
        _additive(mask, query.dtype, _CUDNN_MASKED),
        _wants_logsumexp(query, key, value),
        dropout,
        is_causal,
        False,
        scale=scale,
    )[0]


def _flash(query: Tensor, key: Tensor, value: Tensor, dropout: float, is_causal: bool, scale: float | None) -> Tensor:
    head_dim = query.shape[-1]
    result = _aten._scaled_dot_product_flash_attention.default(
        _pad_last(query), _pad_last(key), _pad_last(value), dropout, is_causal, False, scale=scale or head_dim**-0.5
    )[0]
    return result if result.shape[-1] == head_dim else result[..., :head_dim]


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, scale: float | None
) -> Tensor:
    additive = _additive(mask, query.dtype, -math.inf)
    if additive is not None:
        additive = _aligned_mask(additive).expand(*query.shape[:3], key.shape[2])
    return _aten._scaled_dot_product_efficient_attention.default(
        query, key, value, additive, _wants_logsumexp(query, key, value), dropout, is_causal, scale=scale
    )[0]


def _wants_logsumexp(*operands: Tensor) -> bool:
    """should_compute_logsumexp"""
    return torch.is_grad_enabled() and any(t.requires_grad for t in operands)


def _additive(mask: Tensor | None, dtype: torch.dtype, masked: float) -> Tensor | None:
    """convert_boolean_attn_mask: True takes part."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    out = torch.scalar_tensor(masked, dtype=dtype, device=mask.device)
    return torch.where(mask, torch.scalar_tensor(0.0, dtype=dtype, device=mask.device), out)


def _aligned_mask(mask: Tensor) -> Tensor:
    """preprocess_mask: before the mask is expanded over batch and heads."""
    length = mask.shape[-1]
    missing = -length % _MASK_ALIGNMENT
    if missing:
        return torch.nn.functional.pad(mask, (0, missing))[..., :length]
    if any(stride % _MASK_ALIGNMENT for stride in mask.stride()[:-1]):
        return mask.contiguous()
    return mask


def _pad_last(tensor: Tensor) -> Tensor:
    """pad_last_dim<8>"""
    missing = -tensor.shape[-1] % _HEAD_DIM_ALIGNMENT
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _validate(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool) -> None:
    """validate_sdpa_input"""
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError("Expected query, key, and value to all be  at least 2 dimensional.")
    if mask is not None and mask.dtype != torch.bool and mask.dtype != query.dtype and mask.dtype != torch.float32:
        raise RuntimeError(
            "Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: "
            f"{mask.dtype} and  query.dtype: {query.dtype} instead."
        )
    if mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")
