"""Calls of operators, as compute.call_json writes them, from what PyTorch's traces say of their arguments.

An execution trace names the schema of each operator; for Kineto traces, which do not, the arguments of the operators
that take most of the time stand in a table here. With a call a kernel can be priced for another GPU.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phantora.importers.json_stream import whole_number
from phantora.importers.dtypes import torch_dtype

_SCHEMA = re.compile(r"([A-Za-z_]\w*::\w+)(?:\.(\w+))?\((.*)\) -> ", re.DOTALL)
_MAX_SCHEMA = 4000
_MAX_ITEMS = 4096
_TENSOR = re.compile(r"Tensor\(([^()]{0,60}(?:<[^()]{0,20}>)?)\)")
# torch's c10/core/ScalarType.h
_SCALAR_TYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 9: "complex64",
    10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2", 24: "float8_e4m3fn",
}  # fmt: skip
# Arguments by position (native_functions.yaml of torch 2.11); `!` marks one that is written.
_ARGUMENTS = {
    "mm": "self mat2", "addmm": "self mat1 mat2", "bmm": "self mat2", "baddbmm": "self batch1 batch2",
    "convolution": "input weight bias stride padding dilation transposed output_padding groups",
    "_convolution": "input weight bias stride padding dilation transposed output_padding groups",
    "cudnn_convolution": "self weight padding stride dilation groups",
    "convolution_backward":
        "grad_output input weight bias_sizes stride padding dilation transposed output_padding groups output_mask",
    "_scaled_dot_product_flash_attention": "query key value dropout_p is_causal",
    "_scaled_dot_product_efficient_attention": "query key value attn_bias compute_log_sumexp dropout_p is_causal",
    "_scaled_dot_product_cudnn_attention": "query key value attn_bias compute_log_sumexp dropout_p is_causal",
    "_softmax": "self dim half_to_float", "_log_softmax": "self dim half_to_float",
    "native_layer_norm": "input normalized_shape weight bias eps",
    "native_layer_norm_backward": "grad_out input normalized_shape mean rstd weight bias output_mask",
    "gelu": "self", "gelu_backward": "grad_output self", "relu": "self", "silu": "self",
    "silu_backward": "grad_output self", "threshold_backward": "grad_output self threshold",
    "sum": "self dim keepdim", "mean": "self dim keepdim",
    "add_": "self! other", "mul_": "self! other", "fill_": "self! value", "zero_": "self!",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a schema."""

    name: str
    kind: str
    is_written: bool


@dataclass(frozen=True, slots=True)
class Schema:
    """Name, overload and arguments of an operator."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]


def parse_schema(text: str) -> Schema | None:
    """'aten::mm(Tensor self, Tensor mat2) -> Tensor' taken apart; None when it is no schema."""
    match = _SCHEMA.match(text) if len(text) <= _MAX_SCHEMA else None
    if match is None:
        return None
    arguments = []
    for part in _split(match[3]):
        kind, _, name = part.partition("=")[0].strip().rpartition(" ")
        if name and name != "*":
            arguments.append(Argument(name, kind, "!" in kind))
    return Schema(match[1], match[2] or "", tuple(arguments))


def _split(text: str) -> list[str]:
    """At commas outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def call_text(
    schema: Schema,
    values: Sequence[Any],
    shapes: Sequence[Any],
    types: Sequence[Any],
    strides: Sequence[Any],
    outputs: Sequence[Any],
) -> str:
    """The call with these arguments (as execution traces hold them), as JSON; outputs: as `tensor` makes them."""
    arguments = []
    for number, argument in enumerate(schema.arguments[: len(values)]):
        kind = types[number] if number < len(types) else ""
        shape = shapes[number] if number < len(shapes) else None
        stride = strides[number] if number < len(strides) else None
        found = _value(values[number], shape, stride, kind, argument)
        if found is not None and found != []:
            arguments.append([argument.name, found])
    call: dict[str, Any] = {"name": schema.name, "args": arguments}
    if schema.overload:
        call["overload"] = schema.overload
    written = [argument.name for argument in schema.arguments if argument.is_written]
    if written:
        call["mutated"] = written
    if outputs:
        call["outputs"] = list(outputs)
    return json.dumps(call, separators=(",", ":"))


def tensor(shape: Sequence[int], stride: Any, dtype: str, device: str) -> dict[str, Any]:
    """A tensor as compute.call_json writes it; without strides it is contiguous. device: 'cuda:0', 'cpu', '': a GPU."""
    numbers = [whole_number(step, 0) for step in stride] if isinstance(stride, list) else []
    if len(numbers) != len(shape) or None in numbers:
        numbers = contiguous(shape)
    return {"t": [list(shape), numbers, dtype, *(["cpu"] if device.startswith("cpu") else [])]}


def contiguous(shape: Sequence[int]) -> list[int | None]:
    """Strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step = min(step * max(size, 1), 1 << 50)
    return strides[::-1]  # type: ignore[return-value]


def _value(value: Any, shape: Any, stride: Any, kind: Any, argument: Argument) -> Any:
    if not isinstance(kind, str):
        return None
    if "Tensor(" in kind[:200]:
        dtypes = iter(_TENSOR.findall(kind[: 80 * _MAX_ITEMS]))
        return _tensors(value, shape, stride, dtypes)
    if argument.kind.startswith("ScalarType"):
        return _SCALAR_TYPES.get(value) if isinstance(value, int) else None
    if isinstance(value, list):
        plain = [_plain(item) for item in value[:_MAX_ITEMS]]
        return None if None in plain else plain
    return _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bool) or whole_number(value) is not None and not isinstance(value, str):
        return value
    if not isinstance(value, str) or value == "<None>":
        return None
    try:
        float(value)
    except ValueError:
        return value[:100]
    return 0.0  # prices do not depend on it


def _tensors(value: Any, shape: Any, stride: Any, dtypes: Any, depth: int = 0) -> Any:
    if not isinstance(value, list) or not isinstance(shape, list):
        return None
    if len(value) >= 6 and isinstance(value[5], str):
        numbers = [whole_number(size, 0) for size in shape[:65]]
        if None in numbers or len(numbers) > 64:
            return None
        return tensor(numbers, stride, torch_dtype(next(dtypes, "")), value[5])  # type: ignore[arg-type]
    steps = stride if isinstance(stride, list) else []
    found = [
        _tensors(inner, sizes, steps[i] if i < len(steps) else None, dtypes, depth + 1) if depth < 2 else None
        for i, (inner, sizes) in enumerate(zip(value[:_MAX_ITEMS], shape))
    ]
    return [one for one in found if one is not None]


def positional_call(name: str, args: dict[str, Any]) -> str:
    """The call of an operator of the table, from Kineto's arguments (Input Dims, Input type, ...); '' for any other."""
    names = _ARGUMENTS.get(name.removeprefix("aten::")) if name.startswith("aten::") else None
    if names is None:
        return ""
    lists = [args.get(key) for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")]
    dims, types, strides, concrete = (found if isinstance(found, list) else [] for found in lists)
    if not dims or not types:
        return ""
    arguments, written = [], []
    for number, argument in enumerate(names.split()[: len(dims)]):
        kind, shape = types[number] if number < len(types) else "", dims[number]
        name_of = argument.rstrip("!")
        written += [name_of] if argument.endswith("!") else []
        dtype = torch_dtype(kind)
        if dtype != "unknown" and isinstance(shape, list):
            numbers = [whole_number(size, 0) for size in shape[:65]]
            if None in numbers or len(numbers) > 64:
                return ""
            known = [size for size in numbers if size is not None]
            found: Any = tensor(known, strides[number] if number < len(strides) else None, dtype, "")
        else:
            found = _concrete(concrete[number] if number < len(concrete) else "")
        if found is not None and found != []:
            arguments.append([name_of, found])
    call = {"name": name, "args": arguments, **({"mutated": written} if written else {})}
    return json.dumps(call, separators=(",", ":"))


def _concrete(text: Any) -> Any:
    """'[1, 1]', '0.', 'True': a value that Kineto wrote as text; None when it says nothing."""
    if not isinstance(text, str) or not text or len(text) > 1000:
        return None
    if text in ("True", "False"):
        return text == "True"
    if text.startswith("["):
        items = [_concrete(item.strip()) for item in text.strip("[]").split(",") if item.strip()]
        return None if None in items else items
    number = whole_number(text)
    return _plain(text) if number is None else number
