"""Which attention kernel scaled_dot_product_attention takes on the simulated GPU.

A CPU build has no CUDA side of this choice, so aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.h
are followed here, constraint by constraint; docstrings name them, and `_VERSION` tells where releases of torch differ.
Compared with torch 2.11's answers on an H200 (tests/intercept/probes/attention.py).
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

import torch
from torch import Tensor


class Backend(enum.IntEnum):
    """at::SDPBackend"""

    ERROR = -1
    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3
    OVERRIDEABLE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """What the choice looks at in query, key, value and mask."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    last_stride: int = 1
    requires_grad: bool = False

    @staticmethod
    def of(tensor: Tensor) -> Operand:
        last = tensor.stride(-1) if tensor.dim() else 1
        return Operand(
            shape=tuple(tensor.shape), dtype=tensor.dtype, last_stride=last, requires_grad=tensor.requires_grad
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One call. capability: (major, minor) of the simulated GPU; cudnn_version as torch.backends.cudnn.version() gives
    it."""

    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None = None
    dropout: float = 0.0
    is_causal: bool = False
    enable_gqa: bool = False
    grad_enabled: bool = True
    capability: tuple[int, int] = (9, 0)
    cudnn_version: int = 92000

    @property
    def trains(self) -> bool:
        """input_requires_grad"""
        return self.grad_enabled and any(t.requires_grad for t in (self.query, self.key, self.value))


_HALVES = (torch.float16, torch.bfloat16)
_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
_EFFICIENT_TAKES_GQA = _VERSION >= (2, 14)
_CUDNN_DROPOUT_IN_SIXTEENTHS = _VERSION >= (2, 12)
_CUDNN_NARROW_HEADS = _VERSION >= (2, 14)  # head_dim 256 needs cuDNN > 9.22 and a frontend that the wheels lack
_DEFAULT_ORDER = [int(b) for b in (Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN, Backend.OVERRIDEABLE)]
_CUDNN_FIRST = [int(b) for b in (Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH)]
_SM80_TO_SM121 = ((8, 0), (12, 1))
_MAX_CUDNN_DIM = 65535
_order_is_initialised = False


def choose(call: Attention) -> Backend:
    """select_sdp_backend: the first backend of the priority order whose constraints hold."""
    _initialise_order(call.capability, call.cudnn_version)
    for number in torch._C._get_sdp_priority_order():
        backend = Backend(number)
        if backend is Backend.CUDNN and can_use_cudnn(call):
            return backend
        if backend is Backend.FLASH and can_use_flash(call):
            return backend
        if backend is Backend.EFFICIENT and can_use_efficient(call):
            return backend
        if backend is Backend.MATH and torch._C._get_math_sdp_enabled():
            return backend
    return Backend.ERROR


def prefers_cudnn(capability: tuple[int, int], cudnn_version: int) -> bool:
    """check_prefer_cudnn_attention"""
    if os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") in ("1", "y", "yes", "true", "on"):
        return False
    return cudnn_version > 91500 and capability[0] in (9, 10)


def _initialise_order(capability: tuple[int, int], cudnn_version: int) -> None:
    """priority_order: the default order changes once, unless the script set its own first."""
    global _order_is_initialised
    if not _order_is_initialised:
        _order_is_initialised = True
        if prefers_cudnn(capability, cudnn_version) and torch._C._get_sdp_priority_order() == _DEFAULT_ORDER:
            torch._C._set_sdp_priority_order([*_CUDNN_FIRST, int(Backend.OVERRIDEABLE)])


# ------------------------------------------------------------------ the three fused backends


def can_use_cudnn(call: Attention) -> bool:
    """can_use_cudnn_attention"""
    broken_dropout = call.dropout > 0.0 and 91100 < call.cudnn_version < 91400
    deterministic = torch._C._get_deterministic_algorithms() and not torch._C._get_deterministic_algorithms_warn_only()
    return (
        torch._C._get_cudnn_sdp_enabled()
        and not broken_dropout
        and not deterministic
        and _is_4d(call)
        and _has_dtype(call, _HALVES if call.capability[0] >= 8 else (torch.float16,))
        and _mask_shape_fits(call)
        and _is_between(call.capability, *_SM80_TO_SM121)
        and (not _CUDNN_DROPOUT_IN_SIXTEENTHS or (call.dropout * 16.0).is_integer())
        and _has_lengths(call)
        and _last_strides_are_one(call, ignore_singleton=True)
        and _heads_fit(call, takes_gqa=True, same_kv_heads=False)
        and _cudnn_shapes_fit(call)
    )


def can_use_flash(call: Attention) -> bool:
    """can_use_flash_attention"""
    head_dim = call.query.shape[-1]
    return (
        torch._C._get_flash_sdp_enabled()
        and _is_4d(call)
        and call.mask is None
        and head_dim == call.key.shape[-1] == call.value.shape[-1]
        and head_dim <= 256
        and _is_between(call.capability, *_SM80_TO_SM121)
        and _flash_trains(call)
        and not (call.is_causal and call.query.shape[-2] != call.key.shape[-2])
        and _has_dtype(call, _HALVES if call.capability[0] >= 8 else (torch.float16,))
        and _heads_fit(call, takes_gqa=True, same_kv_heads=True)
        and _has_lengths(call)
        and _last_strides_are_one(call, ignore_singleton=True)
    )


def can_use_efficient(call: Attention) -> bool:
    """can_use_mem_efficient_attention"""
    modern = call.capability[0] >= 8
    return (
        torch._C._get_mem_efficient_sdp_enabled()
        and _is_between(call.capability, (5, 0), (12, 1))
        and _is_4d(call)
        and _efficient_head_dims_fit(call)
        and _has_lengths(call)
        and _last_strides_are_one(call, ignore_singleton=False)
        and _heads_fit(call, takes_gqa=_EFFICIENT_TAKES_GQA, same_kv_heads=True)
        and _has_dtype(call, (*_HALVES, torch.float32) if modern else (torch.float16, torch.float32))
    )


# ------------------------------------------------------------------ single constraints


def _is_between(capability: tuple[int, int], low: tuple[int, int], high: tuple[int, int]) -> bool:
    """check_sm_version"""
    return low <= capability <= high


def _is_4d(call: Attention) -> bool:
    """check_tensor_shapes"""
    return len(call.query.shape) == len(call.key.shape) == len(call.value.shape) == 4


def _has_dtype(call: Attention, allowed: tuple[torch.dtype, ...]) -> bool:
    """check_tensor_dtype"""
    return call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in allowed


def _has_lengths(call: Attention) -> bool:
    """check_nonzero_sequence_lengths_dense"""
    return call.query.shape[-2] != 0 and call.key.shape[-2] != 0


def _last_strides_are_one(call: Attention, ignore_singleton: bool) -> bool:
    """check_last_dim_stride_equals_1_dense"""
    operands_fit = all(t.last_stride == 1 for t in (call.query, call.key, call.value))
    if ignore_singleton and call.query.shape[-1] == 1:
        operands_fit = True
    return operands_fit and (call.mask is None or call.mask.last_stride == 1)


def _heads_fit(call: Attention, takes_gqa: bool, same_kv_heads: bool) -> bool:
    """check_batch_size_and_num_heads_dense, check_grouped_query_attention"""
    if not call.query.shape[0] == call.key.shape[0] == call.value.shape[0]:
        return False
    query_heads, key_heads, value_heads = (t.shape[-3] for t in (call.query, call.key, call.value))
    if not (call.enable_gqa and takes_gqa):
        return query_heads == key_heads == value_heads
    if same_kv_heads and key_heads != value_heads:
        return False
    return query_heads % key_heads == 0 and (same_kv_heads or query_heads % value_heads == 0)


def _mask_shape_fits(call: Attention) -> bool:
    """check_attn_mask_shape"""
    if call.mask is None:
        return True
    if call.mask.requires_grad:
        return False
    batch, heads, length = call.query.shape[:3]
    wanted = (batch, heads, length, call.key.shape[2])
    shape = call.mask.shape
    if len(shape) not in (2, 4):
        return False
    return all(have in (1, want) for have, want in zip(shape, wanted[-len(shape) :]))


def _cudnn_shapes_fit(call: Attention) -> bool:
    """check_cudnn_tensor_shapes, for cuDNN 9 and later"""
    batch, heads, query_length, head_dim = call.query.shape
    key_length, value_dim = call.key.shape[2], call.value.shape[3]
    limit = _cudnn_head_dim_limit(call, (head_dim, value_dim) == (192, 128))
    return (
        batch <= _MAX_CUDNN_DIM
        and heads <= _MAX_CUDNN_DIM
        and head_dim <= limit
        and value_dim <= limit
        and head_dim % 8 == 0
        and value_dim % 8 == 0
        and key_length != 1
        and not (call.dropout != 0.0 and query_length == 1)
    )


def _cudnn_head_dim_limit(call: Attention, has_deepseek_heads: bool) -> int:
    is_hopper, is_blackwell = call.capability == (9, 0), call.capability[0] == 10
    if is_hopper and call.cudnn_version >= 91000 and not _CUDNN_NARROW_HEADS:
        return 256
    if (is_hopper or is_blackwell) and call.cudnn_version >= 91100 and has_deepseek_heads:
        return 192
    return 128


def _flash_trains(call: Attention) -> bool:
    """check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120"""
    small_memory = _is_between(call.capability, (8, 6), (8, 9)) or _is_between(call.capability, (12, 0), (12, 1))
    if not (small_memory and call.trains):
        return True
    head_dim = call.query.shape[-1]
    return head_dim <= 192 or (call.dropout == 0.0 and head_dim > 224)


def _efficient_head_dims_fit(call: Attention) -> bool:
    """check_head_dim_size_mem_efficient, minimum_gemm_alignment"""
    head_dim, value_dim = call.query.shape[-1], call.value.shape[-1]
    is_half = call.query.dtype in _HALVES
    major = call.capability[0]
    alignment = 4 if major >= 8 else 1
    if major >= 8 or (major >= 7 and is_half):  # use_tensor_cores
        alignment = max(alignment, 8 if is_half else 4)
    return (
        head_dim == call.key.shape[-1]
        and head_dim > 0
        and value_dim > 0
        and head_dim % alignment == 0
        and value_dim % alignment == 0
    )
