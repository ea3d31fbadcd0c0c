"""'Expected all tensors to be on the same device': what a CUDA build checks before a kernel runs, with its messages.

Sources: torchgen/dest/register_dispatch_key.py (the generated check), aten/src/ATen/TensorIterator.cpp (compute_types).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from phantora.intercept.operators import CudaOperator, DeviceCheck
from phantora.intercept.schemas import Schema


def check_devices(operator: CudaOperator, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError when the arguments' devices do not fit together."""
    if operator.check is DeviceCheck.ALL_SAME:
        _check_all_same(operator, schema, args, kwargs)
    elif operator.check is DeviceCheck.ITERATOR and not operator.name.startswith(("index", "_index")):
        _check_iterator(args, kwargs)


def _check_all_same(operator: CudaOperator, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    common = None
    for name, value in schema.bound(args, kwargs):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, Tensor):
                continue
            if common is None:
                common = tensor.device
            elif tensor.device != common:
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but got {name} is on {tensor.device}, "
                    f"different from other tensors on {common} (when checking argument in method {operator.wrapper})"
                )


def _check_iterator(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    common = None
    for value in (*args, *kwargs.values()):
        if not isinstance(value, Tensor) or (value.dim() == 0 and not value.is_cuda):
            continue
        if common is None:
            common = value.device
        elif value.device != common and not (value.dim() == 0 and value.device.type == "cpu"):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{_first(common, value.device)}!"
            )


def _first(one: Any, other: Any) -> str:
    """torch names the common (CUDA) device first."""
    ordered = (one, other) if one.type == "cuda" else (other, one)
    return f"{ordered[0]} and {ordered[1]}"
