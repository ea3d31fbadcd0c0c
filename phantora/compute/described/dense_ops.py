"""Rows of matrix products, attention, convolutions and recurrent layers."""

from __future__ import annotations

from typing import Any

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.described.specs import Calls, Row, call, dense, dtype_of, image, number, shapes_of


def product(row: Row) -> Calls:
    """mm, addmm, bmm, baddbmm, matmul, linear, _scaled_mm, _int_mm."""
    shapes, dtype = shapes_of(row, 2), dtype_of(row)
    left, right = shapes[:2] if row["op"] == "_scaled_mm" else shapes[-2:]  # scales stand behind, a bias before
    if row["op"] == "linear" and len(right) == 2 and left[-1] != right[0] and left[-1] == right[1]:
        right = (right[1], right[0])  # torch's weight is (out, in)
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        raise ValueError(f"{list(left)} x {list(right)} is not a product")
    default = "nn" if len(left) > 2 or row["op"] == "matmul" else "nt"
    layout = str(row.get("layout", default))
    if len(layout) != 2 or set(layout) - {"n", "t"}:
        raise ValueError(f"layout must be nn, nt, tn or tt, not {layout!r}")
    a, b = (_matrix(shape, dtype, order) for shape, order in zip((left, right), layout))
    name = _batched(row["op"], left)
    out = dense(
        (*left[:-1], right[-1]), "bfloat16" if dtype.startswith("float8") else "int32" if dtype == "int8" else dtype
    )
    flags = (("allow_tf32", row.get("dtype") == "tf32" or bool(row.get("allow_tf32", False))),)
    if name == "_scaled_mm":
        scale = dense((left[0], 1) if row.get("rowwise") else (), "float32")
        return (call(name, out, flags, self=a, mat2=b, scale_a=scale),)
    if name in ("addmm", "_addmm_activation"):
        bias = dense(shapes[0] if len(shapes) > 2 else (right[-1],), dtype)
        return (call(name, out, flags, self=bias, mat1=a, mat2=b),)
    if name == "baddbmm":
        return (call(name, out, flags, self=out, batch1=a, batch2=b),)
    return (call(name, out, flags, self=a, mat2=b),)


def _batched(op: str, left: tuple[int, ...]) -> str:
    name = {"matmul": "mm", "linear": "mm"}.get(op, op)
    return "bmm" if name == "mm" and len(left) > 2 else name


def _matrix(shape: tuple[int, ...], dtype: str, order: str) -> TensorSpec:
    dims = tuple(range(len(shape)))
    return dense(shape, dtype, (*dims[:-2], dims[-1], dims[-2]) if order == "t" else None)


def vector_product(row: Row) -> Calls:
    m, k = _two(shapes_of(row, 2)[0])
    dtype = dtype_of(row)
    return (call("mv", dense((m,), dtype), self=dense((m, k), dtype), vec=dense((k,), dtype)),)


def _two(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ValueError(f"a matrix has two dimensions, not {len(shape)}")
    return shape[0], shape[1]


def grouped_product(row: Row) -> Calls:
    left, right = shapes_of(row, 2)[:2]  # the offsets may stand behind them
    dtype = dtype_of(row, default="bf16")
    groups = number(row, "groups", right[0] if len(right) == 3 else left[0] if len(left) == 3 else 1)
    ends = dense((groups,), "int32")
    if len(left) == len(right) == 2:
        a, b, out = dense(left, dtype, (1, 0)), dense(right, dtype), dense((groups, left[0], right[1]), dtype)
    else:
        a, b = dense(left, dtype), _matrix(right, dtype, "t")
        out = dense((*left[:-1], right[-1]), dtype)
    return (call("_grouped_mm", out, self=a, mat2=b, offs=ends),)


def attention(row: Row) -> Calls:
    shapes, dtype = shapes_of(row), dtype_of(row, default="bf16")
    shapes = shapes * 3 if len(shapes) == 1 else shapes
    if any(len(s) != 4 for s in shapes[:3]):
        raise ValueError("attention needs shapes of 4 dimensions: batch, heads, tokens, head size")
    backward = row["op"].endswith(("bwd", "backward"))
    backend = str(row.get("backend", _backend_in(row["op"]) or ("cudnn" if dtype != "float32" else "efficient")))
    if backend not in ("flash", "efficient", "cudnn"):
        raise ValueError(f"backend must be flash, efficient or cudnn, not {backend!r}")
    order = (0, 2, 1, 3) if row.get("layout") == "bshd" else None
    q, k, v = (dense(s, dtype, order) for s in (shapes * 2)[:3]) if len(shapes) < 3 else (
        dense(s, dtype, order) for s in shapes[:3]
    )  # fmt: skip
    args: dict[str, Any] = {
        "query": q,
        "key": k,
        "value": v,
        "is_causal": bool(row.get("causal", row.get("is_causal", False))),
    }
    if row.get("mask"):
        args["attn_bias"] = dense((q.shape[0], q.shape[1], q.shape[2], k.shape[2]), dtype)
    flags = (("dropout", True),) if row.get("dropout") or row.get("dropout_p") else ()
    name = f"_scaled_dot_product_{backend}_attention"
    if backward:
        return (call(f"{name}_backward", [q, k, v], flags, grad_out=q, **args),)
    return (call(name, q, flags, **args),)


def _backend_in(op: str) -> str | None:
    return next((name for name in ("flash", "efficient", "cudnn") if name in op), None)


def convolution(row: Row) -> Calls:
    """conv1d/2d/3d, conv_transpose2d, with _backward, _dgrad, _wgrad; convolution, cudnn_convolution."""
    (source, weight), dtype = shapes_of(row, 2)[:2], dtype_of(row)
    if len(source) != len(weight) or len(source) < 3:
        raise ValueError(f"{list(source)} and {list(weight)} are no image batch and filter")
    stride, padding, dilation = number(row, "stride", 1), number(row, "padding", 0), number(row, "dilation", 1)
    op, transposed = row["op"], "transpose" in row["op"] or bool(row.get("transposed", False))
    groups = number(row, "groups", max(source[1] // max(weight[1], 1), 1) if not transposed else 1)
    if transposed:
        sides = [(s - 1) * stride - 2 * padding + dilation * (k - 1) + 1 for s, k in zip(source[2:], weight[2:])]
        channels = weight[1] * groups
    else:
        sides = [(s + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(source[2:], weight[2:])]
        channels = weight[0]
    x, w, y = image(source, dtype, row), image(weight, dtype, row), image((source[0], channels, *sides), dtype, row)
    more: dict[str, Any] = {"groups": groups, "transposed": transposed}
    flags = (("cudnn_allow_tf32", bool(row.get("allow_tf32", True))),)
    if not op.endswith(("backward", "dgrad", "wgrad")):
        return (call("convolution", y, flags, input=x, weight=w, **more),)
    mask = {"dgrad": (True, False, False), "wgrad": (False, True, False)}.get(op[-5:], (True, True, False))
    made = [tensor for tensor, asked in zip((x, w), mask) if asked]
    return (call("convolution_backward", made, flags, grad_output=y, input=x, weight=w, output_mask=mask, **more),)


def recurrent(row: Row) -> Calls:
    dtype, kind = dtype_of(row), row["op"].removesuffix("_backward")
    steps, batch, hidden = (number(row, key) for key in ("steps", "batch", "hidden"))
    width, layers = number(row, "input", hidden), number(row, "layers", 1)
    x, out = dense((steps, batch, width), dtype), dense((steps, batch, hidden), dtype)
    mode = {"lstm": 2, "gru": 3}[kind]
    name = "_cudnn_rnn_backward" if row["op"].endswith("_backward") else "_cudnn_rnn"
    return (
        OpCall(
            f"aten::{name}", "", (("input", x), ("mode", mode), ("hidden_size", hidden), ("num_layers", layers)), (out,)
        ),
    )
