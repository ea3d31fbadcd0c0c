"""How far a random operator moves the Philox offset of its generator.

torch reserves offsets per launch, so that RNG states saved, restored and compared by scripts (checkpointing, DTensor's
and Megatron's trackers) move as on a GPU. Formulas from aten/src/ATen/native/cuda/{DistributionTemplates.h, Dropout.cu,
Bernoulli.cu, Randperm.cu} and transformers/cuda/attention.cu; compared with offsets read on an H200 (torch 2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.schemas import Schema

_BLOCK_SIZE = 256
_OFFSETS_PER_CURAND_CALL = 4
_BERNOULLI_TENSOR = 12  # philox_cuda_state(10), rounded up to a multiple of 4
_POISSON = 20
_MULTINOMIAL = 4
_WIDE_RANGE = 1 << 32

_ELEMENTWISE = frozenset(
    """uniform_ normal_ exponential_ cauchy_ log_normal_ geometric_ native_dropout _fused_dropout rrelu_with_noise
    rrelu_with_noise_ random_ bernoulli_ normal""".split()
)


def increment(name: str, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any], sized: list[Tensor]) -> int:
    """Offsets that operator `name` (no overload) consumes; `sized`: the tensors that it fills or makes."""
    bound = dict(schema.bound(args, kwargs))
    special = _SPECIAL.get(name)
    if special is not None:
        return special(bound)
    if name == "bernoulli_" and schema.overload == "Tensor":
        return _BERNOULLI_TENSOR
    if name in _ELEMENTWISE and sized:
        return elementwise(sized[0].numel() * (2 if sized[0].is_complex() else 1), _unroll(name, sized[0].dtype, bound))
    return 0


def elementwise(num_elements: int, unroll: int) -> int:
    """calc_execution_policy: a grid of at most all resident blocks, each thread drawing `unroll` numbers per round."""
    if num_elements == 0:
        return 0
    blocks = min(_resident_blocks(), -(-num_elements // _BLOCK_SIZE))
    rounds = (num_elements - 1) // (_BLOCK_SIZE * blocks * unroll) + 1
    return rounds * _OFFSETS_PER_CURAND_CALL


def advance(generator: torch.Generator, offsets: int) -> None:
    """Move a generator that the script passed explicitly."""
    if generator.device.type == "cuda":
        generator.set_offset(generator.get_offset() + offsets)


def _resident_blocks() -> int:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.multi_processor_count * (properties.max_threads_per_multi_processor // _BLOCK_SIZE)


def _unroll(name: str, dtype: torch.dtype, bound: dict[str, Any]) -> int:
    """Numbers per curand call: 4 of 32 bits or 2 of 64."""
    if name == "random_":
        low, high = bound.get("from") or 0, bound.get("to")
        if high is None:
            return 2 if dtype in (torch.int64, torch.float64) else 4
        return 2 if high - low >= _WIDE_RANGE else 4
    return 2 if dtype in (torch.float64, torch.complex128) else 4


def _rounded_up(offsets: int) -> int:
    return -(-offsets // _OFFSETS_PER_CURAND_CALL) * _OFFSETS_PER_CURAND_CALL


def _randperm(bound: dict[str, Any]) -> int:
    """64-bit sort keys, then one offset per element to order equal keys."""
    return _rounded_up(bound["n"]) + elementwise(bound["n"], 2)


def _flash(bound: dict[str, Any]) -> int:
    batch, heads = bound["query"].shape[:2]
    return batch * heads * 32 if bound["dropout_p"] > 0 else 0


def _per_score(bound: dict[str, Any]) -> int:
    """One number per attention score (memory-efficient and cuDNN attention)."""
    batch, heads, length = bound["query"].shape[:3]
    return batch * heads * length * bound["key"].shape[2] if bound["dropout_p"] > 0 else 0


_SPECIAL: dict[str, Callable[[dict[str, Any]], int]] = {
    "randperm": _randperm,
    "bernoulli": lambda bound: _BERNOULLI_TENSOR,
    "poisson": lambda bound: _POISSON,
    "multinomial": lambda bound: _MULTINOMIAL,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _per_score,
    "_scaled_dot_product_cudnn_attention": _per_score,
}
