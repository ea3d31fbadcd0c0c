"""Measures exactly the operator calls of a recorded run: each is built again from its description.

Shapes, strides and dtypes are those of the run. Values are random; indices lie within the dimension that they index;
floats, whose values no recording keeps, are 0.5. An operator whose inputs must fit together (a backward pass that needs
its forward's state) may refuse such inputs: its row then says why, and the price stays interpolated.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phantora.compute.calibrate_command import recorded_calls
from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.sweep.case import Case

_WHOLE = ("int64", "int32", "int16", "int8", "uint8")


def recorded_cases(path: Path) -> list[Case]:
    """A case for each call in a run's operators.jsonl (or in that file), in its order."""
    return [case_of(call) for call in recorded_calls(path)]


def case_of(call: OpCall, device: str = "cuda") -> Case:
    """A benchmark of `call`. Making its inputs raises LookupError when this torch has no such operator."""
    limit = _index_limit(call)
    tf32 = dict(call.flags).get("allow_tf32")

    def make() -> tuple[Any, ...]:
        given = dict(call.args)
        return tuple(_argument(argument, given, limit, device) for argument in _operator(call)._schema.arguments)

    def run(*values: Any) -> Any:
        operator = _operator(call)
        if tf32 is not None:
            torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
        return operator(**{argument.name: value for argument, value in zip(operator._schema.arguments, values)})

    return Case(op=call.name, fields={}, make=make, run=run, call=call)


def _operator(call: OpCall) -> Any:
    """The overload that was called; a recording that does not name it means the first that takes these arguments."""
    space, _, name = call.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name, None) if name else None
    if packet is None:
        raise LookupError(f"this torch has no operator {call.name}")
    if call.overload:
        return getattr(packet, call.overload)
    given = {name for name, _ in call.args}
    for overload in packet.overloads():
        if given <= {argument.name for argument in getattr(packet, overload)._schema.arguments}:
            return getattr(packet, overload)
    raise LookupError(f"this torch has no overload of {call.name} with arguments {', '.join(sorted(given))}")


def _argument(argument: Any, given: dict[str, Any], limit: int, device: str) -> Any:
    """A value for one argument of a schema; recordings leave out what is None or empty, and values of numbers."""
    kind = str(argument.real_type)
    if argument.name not in given:
        return argument.default_value if argument.has_default_value() else [] if kind.startswith("List") else None
    value = given[argument.name]
    if kind in ("number", "Optional[number]") and not isinstance(value, TensorSpec):
        return 1 if isinstance(value, int) else 0.5
    if isinstance(value, str) and hasattr(torch, value) and isinstance(getattr(torch, value), torch.dtype):
        return getattr(torch, value)
    return _value(value, limit, device)


def _index_limit(call: OpCall) -> int:
    """Indices stay below the smallest dimension that they could index."""
    shapes = [v.shape for _, v in call.args if isinstance(v, TensorSpec) and v.dtype not in _WHOLE and v.shape]
    table = next((v for n, v in call.args if n in ("weight", "self") and isinstance(v, TensorSpec) and v.shape), None)
    if table is not None and table.dtype not in _WHOLE:
        dim = call.arg("dim", 0)
        return max(table.shape[dim % len(table.shape)] if isinstance(dim, int) else table.shape[0], 1)
    return max(min((min(s) for s in shapes), default=1), 1)


def _value(value: Any, limit: int, device: str) -> Any:
    if isinstance(value, TensorSpec):
        return _tensor(value, limit, device)
    if isinstance(value, tuple):
        return [_value(item, limit, device) for item in value]
    return 0.5 if isinstance(value, float) else value


def _tensor(spec: TensorSpec, limit: int, device: str) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    length = 1 + sum((size - 1) * stride for size, stride in zip(spec.shape, spec.stride)) if all(spec.shape) else 0
    where = device if spec.device == "cuda" else "cpu"
    if spec.dtype == "bool":
        flat = torch.rand(length, device=where) > 0.5
    elif spec.dtype in _WHOLE:
        flat = torch.randint(
            0, min(limit, 100) if spec.dtype in ("int8", "uint8") else limit, (length,), device=where
        ).to(dtype)
    else:
        flat = torch.randn(length, device=where).to(dtype)
    return flat.as_strided(spec.shape, spec.stride)
