"""OpCalls as JSON: lists and numbers only, small enough to keep one with every measured row.

A tensor is {"t": [shape, stride, dtype]} (with a fourth item, the device, when it is not cuda); other values are as
they are, lists are lists.
"""

from __future__ import annotations

from typing import Any

from phantora.compute.call import OpCall, TensorSpec, Value


def to_json(call: OpCall) -> dict[str, Any]:
    """Arguments that are None or empty are left out: no price depends on their presence."""
    found: dict[str, Any] = {
        "name": call.name,
        "args": [[name, _value(value)] for name, value in call.args if value is not None and value != ()],
    }
    for key, value in (("overload", call.overload), ("mutated", list(call.mutated))):
        if value:
            found[key] = value
    if call.outputs:
        found["outputs"] = [_value(t) for t in call.outputs]
    if call.flags:
        found["flags"] = [[name, _value(value)] for name, value in call.flags]
    return found


def from_json(data: dict[str, Any]) -> OpCall:
    """The call that `to_json` wrote."""
    return OpCall(
        data["name"],
        data.get("overload", ""),
        tuple((name, _read(value)) for name, value in data["args"]),
        tuple(_tensor(value["t"]) for value in data.get("outputs", ())),
        tuple(data.get("mutated", ())),
        tuple((name, _read(value)) for name, value in data.get("flags", ())),
    )


def _value(value: Value) -> Any:
    if isinstance(value, TensorSpec):
        tail = [] if value.device == "cuda" else [value.device]
        return {"t": [list(value.shape), list(value.stride), value.dtype, *tail]}
    return [_value(item) for item in value] if isinstance(value, tuple) else value


def _read(value: Any) -> Value:
    if isinstance(value, dict):
        return _tensor(value["t"])
    return tuple(_read(item) for item in value) if isinstance(value, list) else value


def _tensor(parts: list[Any]) -> TensorSpec:
    return TensorSpec(tuple(parts[0]), tuple(parts[1]), parts[2], parts[3] if len(parts) > 3 else "cuda")
