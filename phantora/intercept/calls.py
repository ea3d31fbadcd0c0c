"""From a call of an operator to the `OpCall` that `compute` prices, and to the key of its signature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from phantora.compute.call import OpCall, TensorSpec, Value
from phantora.intercept.schemas import Schema

_ONE = torch.ones(1, dtype=torch.int64, device="cpu")


def tensor_spec(tensor: Tensor) -> TensorSpec:
    """What a price may depend on."""
    device = "cpu" if tensor.device.type == "cpu" else "cuda"
    return TensorSpec(tuple(tensor.shape), tuple(tensor.stride()), dtype_name(tensor.dtype), device)


def dtype_name(dtype: torch.dtype) -> str:
    """'bfloat16' for torch.bfloat16."""
    return str(dtype).rpartition(".")[2]


def value_of(value: Any) -> Value:
    """An argument as `OpCall` holds it: tensors as specs, lists as tuples, floats without their value."""
    if isinstance(value, Tensor):
        return _spec_or_layout(value)
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(value_of(item) for item in value)
    if isinstance(value, (float, complex)):
        return 0.0
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, torch.Generator):
        return None
    return str(value)


def _spec_or_layout(tensor: Tensor) -> TensorSpec:
    if tensor.layout is torch.strided:
        return tensor_spec(tensor)
    return TensorSpec(tuple(tensor.shape), (), dtype_name(tensor.dtype), "cuda")


def op_call(
    schema: Schema,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: list[Any],
    flags: tuple[tuple[str, Value], ...] = (),
) -> OpCall:
    """The call as `compute` sees it. `outputs`: tensors (real or meta) that the call makes."""
    return OpCall(
        name=schema.name,
        overload=schema.overload,
        args=tuple((name, _argument(schema, name, value)) for name, value in schema.bound(args, kwargs)),
        outputs=tuple(_spec_or_layout(t) for t in outputs),
        mutated=tuple(schema.names[i] for i in schema.written),
        flags=flags,
    )


def _argument(schema: Schema, name: str, value: Any) -> Value:
    if name in schema.scalar_names and isinstance(value, (int, float, complex)):
        return value if isinstance(value, bool) else type(value)(0) if isinstance(value, int) else 0.0
    return value_of(value)


def key_of(value: Any) -> Any:
    """A hashable that is equal for arguments which lead to the same outputs and the same kernels."""
    if isinstance(value, Tensor):
        return _tensor_key(value)
    if isinstance(value, bool):  # True == 1 would otherwise share a key with the integer
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return tuple([key_of(item) for item in value])
    if isinstance(value, float):
        return float
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.device):
        return value.type
    return value


def _tensor_key(t: Tensor) -> Any:
    if t.is_cuda:
        if t.is_conj() or t.is_neg():
            return (t.dtype, t.shape, t.stride(), t.is_conj(), t.is_neg())
        return (t.dtype, t.shape, t.stride())
    if t.dim() == 0:  # a wrapped number promotes differently from a tensor of its dtype
        return (t.dtype, torch.result_type(_ONE, t))
    return (t.dtype, t.shape, t.stride(), t.device.type)


def key_of_call(args: tuple[Any, ...], kwargs: dict[str, Any], exact_floats: bool) -> Any:
    """The key of a whole call; `exact_floats` where their values decide the shape of the output (arange)."""
    if exact_floats:
        return (tuple([_exact(a) for a in args]), tuple([(k, _exact(v)) for k, v in kwargs.items()]))
    key: Any = tuple([key_of(a) for a in args])
    if kwargs:
        key = (key, tuple([(k, key_of(v)) for k, v in kwargs.items()]))
    return key


def _exact(value: Any) -> Any:
    return (type(value), value) if isinstance(value, (bool, int, float)) else key_of(value)
