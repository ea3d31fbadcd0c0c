"""Reading the fields of a described row, and short ways to write tensors and calls."""

from __future__ import annotations

from typing import Any

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.work import dense

Row = dict[str, Any]
Calls = tuple[OpCall, ...]

# Short names of dtypes in rows; torch's own names are accepted as they are.
DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32", "fp64": "float64", "half": "float16",
    "float": "float32", "double": "float64", "fp8": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
    "long": "int64", "int": "int32",
}  # fmt: skip
_KNOWN = {*DTYPES.values(), "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"}


def dtype_of(row: Row, key: str = "dtype", default: str = "float32") -> str:
    """torch's name of the row's dtype. ValueError when there is no such dtype."""
    given = str(row.get(key, default)).removeprefix("torch.")
    name = DTYPES.get(given, given)
    if name not in _KNOWN and not name.startswith("float8"):
        raise ValueError(f"unknown {key} {given!r} (known: {', '.join(sorted({*DTYPES, *_KNOWN}))})")
    return name


def shapes_of(row: Row, least: int = 1) -> list[tuple[int, ...]]:
    """The row's shapes, or one shape of its numel. ValueError when there are fewer than `least`."""
    if "shapes" in row:
        given = row["shapes"]
        if not isinstance(given, list) or not all(isinstance(s, list) and _whole(s) for s in given):
            raise ValueError(f"shapes must be a list of lists of whole numbers, not {given!r}")
        found = [tuple(s) for s in given]
    elif "shape" in row and isinstance(row["shape"], list) and _whole(row["shape"]):
        found = [tuple(row["shape"])]
    elif "numel" in row:
        found = [(number(row, "numel"),)]
    else:
        raise ValueError("shapes or numel is missing")
    if len(found) < least:
        raise ValueError(f"{row['op']} needs {least} shapes, not {len(found)}")
    return found


def _whole(values: list[Any]) -> bool:
    return all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values)


def number(row: Row, key: str, default: int | None = None) -> int:
    """A whole number of the row. ValueError when it is missing and has no default, or is no whole number."""
    value = row.get(key, default)
    if isinstance(value, list) and value and len(set(map(str, value))) == 1:
        value = value[0]
    if value is None:
        raise ValueError(f"{key} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{key} must be a whole number, not {value!r}")
    return value


def image(shape: tuple[int, ...], dtype: str, row: Row) -> TensorSpec:
    """An image batch in the layout of the row (channels_last)."""
    last = bool(row.get("channels_last", False)) and len(shape) >= 4
    return dense(shape, dtype, (0, *range(2, len(shape)), 1) if last else None)


def call(
    name: str,
    out: list[TensorSpec] | TensorSpec | None,
    flags: tuple[tuple[str, Any], ...] = (),
    mutated: tuple[str, ...] = (),
    **args: Any,
) -> OpCall:
    outputs = () if out is None else tuple(out) if isinstance(out, list) else (out,)
    named = name if "::" in name or name.startswith("memcpy") else f"aten::{name}"
    return OpCall(named, args=tuple(args.items()), outputs=outputs, mutated=mutated, flags=flags)


def broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that operands of these shapes make. ValueError when they do not fit."""
    rank = max(map(len, shapes))
    wide = [(1,) * (rank - len(s)) + s for s in shapes]
    for column in zip(*wide):
        if len(set(column) - {1}) > 1:
            raise ValueError(f"shapes {[list(s) for s in shapes]} cannot be broadcast")
    return tuple(max(column) if 0 not in column else 0 for column in zip(*wide))
