"""Rows of pointwise operators, casts, copies, joins, fills and random numbers."""

from __future__ import annotations

from phantora.compute.call import TensorSpec
from phantora.compute.described.specs import Calls, Row, broadcast, call, dense, dtype_of, image, number, shapes_of

# Operands of operators when a row gives only their common size.
_BINARY = {
    "add",
    "add_",
    "sub",
    "sub_",
    "mul",
    "mul_",
    "div",
    "div_",
    "maximum",
    "minimum",
    "atan2",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bitwise_and",
    "mse_loss",
    "copy_",
    "fmod",
    "remainder",
    "hypot",
}
_TERNARY = {"addcmul", "addcdiv", "addcmul_", "addcdiv_", "lerp_tensor"}
_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or", "logical_not", "isnan", "isinf"}
_RENAMED = {
    "mul_scalar": "mul",
    "add_scalar": "add",
    "div_scalar": "div",
    "gelu_tanh": "gelu",
    "pow3": "pow",
    "gelu_tanh_backward": "gelu_backward",
    "lerp_tensor": "lerp",
}
_RANDOM_INPLACE = {"normal_", "uniform_", "bernoulli_", "exponential_", "random_"}


def pointwise(row: Row) -> Calls:
    """An operator on operands of equal or broadcast shapes; comparisons write bool."""
    op, dtype = row["op"], dtype_of(row)
    shapes = shapes_of(row)
    name = _RENAMED.get(op, op)
    if len(shapes) == 1 and not op.endswith("_scalar"):
        backward = op.endswith("_backward")
        shapes = shapes * (3 if op in _TERNARY else 2 if op in _BINARY or backward or op == "lerp" else 1)
    types = [dtype, *([dtype_of(row, "other", dtype)] * (len(shapes) - 1))]
    operands = [dense(shape, kind) for shape, kind in zip(shapes, types)]
    widest = max(types, key=lambda t: ("float" in t, t == "float64", t == "float32"))
    out = dense(broadcast(shapes), "bool" if op in _COMPARISONS else widest)
    names = ("grad_output", "self", "third") if op.endswith("_backward") else ("self", "other", "third", "fourth")
    args = dict(zip(names, operands))
    if name.endswith("_") and not name.startswith("_"):
        return (call(name, None, mutated=("self",), **args),)
    return (call(name, out, **args),)


def masked(row: Row) -> Calls:
    """where, masked_fill, masked_fill_, native_dropout_backward: a mask of bool beside the values."""
    op, dtype, shapes = row["op"], dtype_of(row), shapes_of(row)
    x = dense(shapes[0], dtype)
    if op == "where":
        if len(shapes) == 3:
            operands = [dense(shape, kind) for shape, kind in zip(shapes, ("bool", dtype, dtype))]
            out = dense(broadcast(shapes), dtype)
            return (call(op, out, condition=operands[0], self=operands[1], other=operands[2]),)
        return (call(op, x, condition=dense(x.shape, "bool"), self=x, other=x),)
    mask = dense(shapes[1] if len(shapes) > 1 else x.shape, "bool")
    if op == "masked_select":
        return (call(op, dense((max(_count(x) // 2, 1),), dtype), self=x, mask=mask),)
    if op.endswith("_") or op == "masked_scatter_":
        return (call(op, None, mutated=("self",), self=x, mask=mask),)
    return (call(op, x, self=x, mask=mask),)


def _count(tensor: TensorSpec) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def dropout(row: Row) -> Calls:
    x = dense(shapes_of(row)[0], dtype_of(row))
    return (call("native_dropout", [x, dense(x.shape, "bool")], input=x),)


def cast(row: Row) -> Calls:
    """to, to_fp32, to_bf16, _to_copy (dtype, to)."""
    target = {"to_fp32": "fp32", "to_bf16": "bf16", "to_fp16": "fp16"}.get(row["op"], row.get("to", "fp32"))
    x = dense(shapes_of(row)[0], dtype_of(row))
    return (call("_to_copy", dense(x.shape, dtype_of({"to": target}, "to")), self=x),)


def copy(row: Row) -> Calls:
    """clone, contiguous, copy_to_nhwc, transpose_contiguous."""
    shape, dtype = shapes_of(row)[0], dtype_of(row)
    if row["op"] == "transpose_contiguous" and len(shape) == 2:
        turned = (shape[1], shape[0])
        return (call("clone", dense(turned, dtype), self=dense(turned, dtype, (1, 0))),)
    x = image(shape, dtype, row)
    return (call("clone", x, self=x),)


def join(row: Row) -> Calls:
    """cat (shapes of all parts, dim) and stack."""
    shapes, dtype = shapes_of(row), dtype_of(row)
    if len(shapes) == 1:
        shapes = shapes * number(row, "tensors", 2)
    rank = len(shapes[0])
    if any(len(s) != rank for s in shapes):
        raise ValueError("all parts of cat need the same number of dimensions")
    dim = int(row.get("dim", 0)) % max(rank + (row["op"] == "stack"), 1)
    parts = tuple(dense(s, dtype) for s in shapes)
    if row["op"] == "stack":
        out = (*shapes[0][:dim], len(shapes), *shapes[0][dim:])
    else:
        out = (*shapes[0][:dim], sum(s[dim] for s in shapes), *shapes[0][dim + 1 :])
    return (call("cat", dense(out, dtype), tensors=parts, dim=dim),)


def fill(row: Row) -> Calls:
    x = dense(shapes_of(row)[0], dtype_of(row))
    inplace = row["op"].endswith("_")
    return (
        call(
            row["op"], None if inplace else x, mutated=("self",) if inplace else (), **({"self": x} if inplace else {})
        ),
    )


def random(row: Row) -> Calls:
    x = dense(shapes_of(row)[0], dtype_of(row))
    if row["op"] in _RANDOM_INPLACE:
        return (call(row["op"], None, mutated=("self",), self=x),)
    return (call(row["op"], x, **({"self": x} if row["op"] == "bernoulli" else {})),)


def finite(row: Row) -> Calls:
    """isfinite(x).all(): five kernels, measured as one."""
    x = dense(shapes_of(row)[0], dtype_of(row))
    return (call("isfinite_all", TensorSpec((), (), "bool"), self=x),)


def transfer(row: Row) -> Calls:
    """memcpy_h2d, memcpy_d2h (bytes, pinned)."""
    size = dense((number(row, "bytes"),), "uint8")
    return (call(row["op"], size, self=size, pinned=bool(row.get("pinned", True))),)
