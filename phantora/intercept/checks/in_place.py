"""TensorIterator's rules for an operator that writes its result into an argument.

An operator in place has no result of its own to infer, so its mistakes would pass unseen. What it computes is what the
functional operator of the same name computes: that one's meta kernel says shape and dtype, and TensorIterator
(aten/src/ATen/TensorIterator.cpp: mark_resize_outputs, compute_types, compute_mem_overlaps) says whether they fit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phantora.intercept.checks import broadcasting
from phantora.intercept.checks.supported_dtypes import SCALAR_TYPE_NAMES
from phantora.intercept.schemas import Schema, tensors_in
from phantora.intercept.shape_inference import UnconfirmedError, infer_meta

# Elementwise without torch's `pointwise` tag, or with the same demands on `self`.
_LIKE_POINTWISE = frozenset(
    """copysign_ cumprod_ cumsum_ gcd_ lcm_ heaviside_ gelu_ mish_ threshold_ hardswish_ eq_ ne_ ge_ gt_ le_ lt_ tril_
    triu_ addmm_ addmv_ baddbmm_ scatter_ scatter_add_ scatter_reduce_ index_add_ index_copy_""".split()
)
# Their functional operators are named otherwise.
_FUNCTIONAL = {"pow_.Scalar": "pow.Tensor_Scalar", "pow_.Tensor": "pow.Tensor_Tensor"}
_EXPANDED_RESULT = "unsupported operation: more than one element of the written-to tensor refers to a single memory \
location. Please clone() the tensor before performing the operation."
_UNCHECKED_OUT = frozenset(f"aten::{name}" for name in "gather take index_select cat kthvalue bernoulli".split())


def check_in_place(op: Any, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise what TensorIterator raises when the result of `op` cannot be written into its first argument."""
    name = schema.name.removeprefix("aten::")
    if not args:
        return
    is_pointwise = torch.Tag.pointwise in op.tags
    if isinstance(args[0], Tensor) and (is_pointwise or name in _LIKE_POINTWISE):
        _check_overlap(args[0])
        if is_pointwise and _is_of_one_float_type(args, kwargs):
            _check_shapes(args[0], tensors_in(args, kwargs))
            return
        functional = functional_of(name, schema.overload)
        if functional is not None:
            _check_fit(args[0], *_result(functional, args, kwargs))
    elif name.startswith("_foreach_") and name != "_foreach_copy_" and not _all_alike(args):
        functional = functional_of(name, schema.overload)
        if functional is not None:
            _check_list(args[0], functional, args, kwargs)


def check_out(schema: Schema, kwargs: dict[str, Any]) -> None:
    """at::assert_no_internal_overlap for the operators whose meta kernels forget it."""
    if schema.name in _UNCHECKED_OUT:
        for name in schema.out_names:
            if isinstance(kwargs.get(name), Tensor):
                _check_overlap(kwargs[name])


def _is_of_one_float_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether nothing is promoted: then only shapes can be wrong, which is quicker to see without a meta kernel."""
    dtype = args[0].dtype
    values = (*args, *kwargs.values())
    return dtype.is_floating_point and not any(
        isinstance(value, complex) or (isinstance(value, Tensor) and value.dtype != dtype) for value in values
    )


def _check_shapes(self: Tensor, tensors: list[Tensor]) -> None:
    shapes = [t.shape for t in tensors]
    error = broadcasting.mismatch(shapes)
    if error is not None:
        raise error
    _check_fit(self, torch.broadcast_shapes(*shapes), self.dtype)


def functional_of(name: str, overload: str) -> Any | None:
    """torch.ops.aten's overload that computes what `name` (in place, 'add_') writes."""
    full = _FUNCTIONAL.get(f"{name}.{overload}", f"{name[:-1]}.{overload or 'default'}")
    base, _, overload = full.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return None if packet is None else getattr(packet, overload, None)


def _result(functional: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, torch.dtype | None]:
    """(shape, dtype) of what is computed; (None, None) when that cannot be told."""
    try:
        result = infer_meta(functional, args, kwargs)
    except (UnconfirmedError, NotImplementedError, TypeError):
        return None, None
    return (result.shape, result.dtype) if isinstance(result, Tensor) else (None, None)


def _check_fit(self: Tensor, shape: Any, dtype: torch.dtype | None) -> None:
    if shape is None or dtype is None:
        return
    if tuple(shape) != tuple(self.shape):
        raise RuntimeError(
            f"output with shape {list(self.shape)} doesn't match the broadcast shape {list(shape)}"
        )
    if not torch.can_cast(dtype, self.dtype):
        names = [SCALAR_TYPE_NAMES.get(each, str(each)) for each in (dtype, self.dtype)]
        raise RuntimeError(f"result type {names[0]} can't be cast to the desired output type {names[1]}")


def _check_overlap(self: Tensor) -> None:
    """at::has_internal_overlap: certain when a dimension of stride 0 has more than one element."""
    if any(size > 1 and stride == 0 for size, stride in zip(self.shape, self.stride())) and self.numel():
        raise RuntimeError(_EXPANDED_RESULT)


def _all_alike(args: tuple[Any, ...]) -> bool:
    """Whether the lists hold tensors of the same shapes and floating dtypes: then nothing can go wrong."""
    first = args[0]
    if not isinstance(first, (list, tuple)):
        return True
    for other in args:
        if not isinstance(other, (list, tuple)) or not other or not isinstance(other[0], Tensor):
            continue
        if len(other) != len(first):
            return False
        for one, two in zip(first, other):
            if one.dtype != two.dtype or one.shape != two.shape or not one.dtype.is_floating_point:
                return False
    return True


def _check_list(written: Any, functional: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The slow paths in ForeachOpsKernels.cpp, which CUDA takes for mixed lists: one operator in place per tensor."""
    try:
        results = infer_meta(functional, args, kwargs)
    except (UnconfirmedError, NotImplementedError, TypeError):
        return
    for self, result in zip(written, results):
        _check_fit(self, result.shape, result.dtype)
