"""What the rules have in common: how torch names dtypes, and how a rule refuses a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.checks.supported_dtypes import SCALAR_TYPE_NAMES

Arguments = dict[str, Any]
"""Every argument of a call by its name, defaults filled in."""
Rule = Callable[[Arguments], None]
"""Raises what the CUDA kernel raises for such arguments."""

_C_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.int64: "long int",
    torch.int32: "int",
    torch.int8: "signed char",
    torch.uint8: "unsigned char",
    torch.bool: "bool",
}


def type_name(tensor: Tensor) -> str:
    """'BFloat16'"""
    return SCALAR_TYPE_NAMES.get(tensor.dtype, str(tensor.dtype))


def c_type_name(tensor: Tensor) -> str:
    """'c10::BFloat16', 'float': as caffe2::TypeMeta names it on Linux."""
    return _C_NAMES.get(tensor.dtype, f"c10::{type_name(tensor)}")


def require(condition: bool, message: str, kind: type[Exception] = RuntimeError) -> None:
    if not condition:
        raise kind(message)


def require_type(expected: Tensor, *tensors: Tensor | None) -> None:
    """What `data_ptr<scalar_t>()` raises, with scalar_t the type of `expected`."""
    for tensor in tensors:
        if tensor is not None and tensor.dtype != expected.dtype:
            raise RuntimeError(f"expected scalar type {type_name(expected)} but found {type_name(tensor)}")
