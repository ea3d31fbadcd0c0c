"""Which operator calls a piece of code makes: a dispatch mode that writes them down as `OpCall`s."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from phantora.compute.call import OpCall, TensorSpec, Value


def spec(tensor: Tensor) -> TensorSpec:
    """The tensor as prices see it; a layout without strides has none."""
    strides = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
    return TensorSpec(tuple(tensor.shape), strides, str(tensor.dtype).rpartition(".")[2], tensor.device.type)


def value_of(value: Any) -> Value:
    """An argument as `OpCall` holds it."""
    if isinstance(value, Tensor):
        return spec(value)
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(value_of(item) for item in value)
    if isinstance(value, (float, complex)):
        return 0.0
    if isinstance(value, torch.dtype):
        return str(value).rpartition(".")[2]
    return None if isinstance(value, torch.Generator) else str(value)


class Observer(TorchDispatchMode):
    """Collects the calls that reach a device, except views and allocations (they launch nothing)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and not func._schema.name.startswith(("aten::empty", "aten::_unsafe_view")):
            self.calls.append(_call(func, args, kwargs or {}, out))
        return out


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> OpCall:
    schema = func._schema
    bound = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    bound |= dict(zip((a.name for a in schema.arguments), args)) | kwargs
    results = out if isinstance(out, (list, tuple)) and len(schema.returns) != 1 else (out,)
    made = [result for result, returned in zip(results, schema.returns) if returned.alias_info is None]
    flat = [t for o in made for t in (o if isinstance(o, (list, tuple)) else (o,)) if isinstance(t, Tensor)]
    return OpCall(
        schema.name,
        schema.overload_name,
        tuple((name, value_of(value)) for name, value in bound.items()),
        tuple(map(spec, flat)),
        tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write),
        _flags(schema.name, bound),
    )


def _flags(name: str, bound: dict[str, Any]) -> tuple[tuple[str, Value], ...]:
    """Global switches and values of floats that change the kernel."""
    flags: list[tuple[str, Value]] = []
    if any(isinstance(a, Tensor) and a.dtype is torch.float32 for a in bound.values()):
        if "mm" in name or name.endswith(("linear", "mv")):
            flags.append(("allow_tf32", torch.backends.cuda.matmul.allow_tf32))
        if "conv" in name:
            flags.append(("cudnn_allow_tf32", torch.backends.cudnn.allow_tf32))
    if "attention" in name and (bound.get("dropout_p") or 0.0) > 0.0:
        flags.append(("dropout", True))
    return tuple(flags)
