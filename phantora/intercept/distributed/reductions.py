"""Reductions of real contents, in the order of the members' ranks, so that every run gives the same bits."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# c10d::ReduceOp::RedOpType (torch/csrc/distributed/c10d/Types.hpp)
_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")


def name_of(boxed: Any) -> str:
    """'SUM', 'AVG', ... of a c10d operator's `reduce_op` argument."""
    number = int(boxed.op())
    return _NAMES[number] if number < len(_NAMES) else "SUM"


def is_computable(name: str) -> bool:
    """PREMUL_SUM hides its factor from Python."""
    return name != "PREMUL_SUM"


_PAIRWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
# As getNcclReduceOp maps them (ProcessGroupNCCL.cpp): a sum of booleans is their maximum.
_PAIRWISE_OF_BOOL = {
    **_PAIRWISE,
    "SUM": torch.logical_or,
    "PRODUCT": torch.logical_and,
    "MIN": torch.logical_and,
    "MAX": torch.logical_or,
}


def reduce(values: list[Tensor], name: str) -> Tensor:
    """Elementwise over tensors of one shape and dtype. Narrow floats are added in float32 and rounded once."""
    dtype = values[0].dtype
    is_narrow = dtype.is_floating_point and dtype.itemsize < 4
    operands = [value.float() for value in values] if is_narrow else values
    pairwise = (_PAIRWISE_OF_BOOL if dtype == torch.bool else _PAIRWISE)[name]
    total = functools.reduce(pairwise, operands)
    if name == "AVG" and len(values) > 1:
        exact = dtype.is_floating_point or dtype.is_complex
        total = total / len(values) if exact else torch.div(total, len(values), rounding_mode="trunc")
    return total.to(dtype)
