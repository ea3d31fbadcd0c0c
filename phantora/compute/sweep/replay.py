"""Measures exactly the operator calls of a recorded run: each is built again from its description.

Shapes, strides and dtypes are those of the run. Values are random; indices lie within the dimension that they index;
floats, whose values no recording keeps, are 0.5. An operator whose inputs must fit together (a backward pass that needs
its forward's state) may refuse such inputs: its row then says why, and the price stays interpolated.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.call_json import to_json
from phantora.compute.sweep.case import Case
from phantora.compute.sweep.measure import provenance, write
from phantora.compute.sweep.timing import device_us

_WHOLE = ("int64", "int32", "int16", "int8", "uint8")


def measure_calls(calls: list[OpCall], path: Path, seconds: float) -> None:
    """One row a call into `path` (JSON lines), until `seconds` are over."""
    until = time.monotonic() + seconds
    with open(path, "w", encoding="utf-8") as out:
        write(out, {"provenance": provenance()})
        for number, call in enumerate(calls):
            if time.monotonic() > until:
                break
            row: dict[str, Any] = {"case": number, "op": call.name, "calls": [to_json(call)]}
            try:
                case = case_of(call)
                us, host_us = device_us(case, case.make())
                row |= {"us": round(us, 3), "host_us": round(host_us, 2)}
            except Exception as error:  # recorded, not hidden
                row["error"] = f"{type(error).__name__}: {str(error)[:160]}"
                torch.cuda.empty_cache()
            write(out, row)


def case_of(call: OpCall, device: str = "cuda") -> Case:
    """A benchmark of `call`. LookupError when this torch has no such operator."""
    operator = _operator(call)
    limit = _index_limit(call)

    def make() -> tuple[Any, ...]:
        return tuple(_value(value, limit, device) for _, value in call.args)

    names = [name for name, _ in call.args]
    tf32 = dict(call.flags).get("allow_tf32")

    def run(*values: Any) -> Any:
        if tf32 is not None:
            torch.backends.cuda.matmul.allow_tf32 = bool(tf32)
        return operator(**dict(zip(names, values)))

    return Case(op=call.name, fields={}, make=make, run=run)


def _operator(call: OpCall) -> Any:
    space, _, name = call.name.partition("::")
    packet = getattr(getattr(torch.ops, space), name, None)
    if packet is None:
        raise LookupError(f"this torch has no operator {call.name}")
    return getattr(packet, call.overload or "default")


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
