"""Rows of normalisations, softmax, losses, reductions, scans and sorts."""

from __future__ import annotations

import math
from typing import Any

from phantora.compute.call import TensorSpec
from phantora.compute.described.specs import Calls, Row, call, dense, dtype_of, image, number, shapes_of

_SOFTMAX = {"softmax": "_softmax", "log_softmax": "_log_softmax"}
REDUCTIONS = (
    "sum",
    "mean",
    "amax",
    "amin",
    "max",
    "min",
    "var",
    "std",
    "var_mean",
    "argmax",
    "argmin",
    "any",
    "all",
    "prod",
    "norm",
    "linalg_vector_norm",
    "logsumexp",
    "count_nonzero",
)


def softmax(row: Row) -> Calls:
    x, stem = (
        dense(shapes_of(row)[0], dtype_of(row)),
        row["op"].strip("_").removesuffix("_data").removesuffix("_backward"),
    )
    name, dim = _SOFTMAX[stem], int(row.get("dim", -1))
    if "backward" in row["op"]:
        return (call(f"{name}_backward_data", x, grad_output=x, output=x, dim=dim),)
    return (call(name, x, self=x, dim=dim),)


def layer_norm(row: Row) -> Calls:
    """layer_norm, rms_norm and their backward passes, by short and by aten name; the last dimension is normalised."""
    shape, dtype = shapes_of(row)[0], dtype_of(row)
    columns = math.prod(row["normalized_shape"]) if isinstance(row.get("normalized_shape"), list) else shape[-1]
    x, w, stats = (
        dense(shape, dtype),
        dense((columns,), dtype),
        dense((math.prod(shape) // max(columns, 1), 1), "float32"),
    )
    rms, backward = "rms" in row["op"], "backward" in row["op"]
    stem = "_fused_rms_norm" if rms else "native_layer_norm"
    args: dict[str, Any] = {"input": x, "normalized_shape": (columns,), "weight": w}
    if backward:
        return (call(f"{stem}_backward", [x, w] if rms else [x, w, w], grad_out=x, **args),)
    return (call(stem, [x, stats] if rms else [x, stats, stats], **args),)


def group_norm(row: Row) -> Calls:
    """ATen's kernels take NCHW: channels_last images are copied first."""
    shape, dtype = shapes_of(row)[0], dtype_of(row)
    groups = number(row, "groups", row.get("num_groups", row.get("group", 32)))
    if len(shape) < 2 or groups < 1 or shape[1] % groups:
        raise ValueError(f"{groups} groups do not divide the channels of {list(shape)}")
    x, w, stats = dense(shape, dtype), dense((shape[1],), dtype), dense((shape[0], groups), dtype)
    before = (call("clone", x, self=image(shape, dtype, row)),) if row.get("channels_last") else ()
    if "backward" in row["op"]:
        return (call("native_group_norm_backward", [x, w, w], grad_out=x, input=x, weight=w, group=groups),)
    return (*before, call("native_group_norm", [x, stats, stats], input=x, weight=w, bias=w, group=groups))


def batch_norm(row: Row) -> Calls:
    shape, dtype = shapes_of(row)[0], dtype_of(row)
    x, w = image(shape, dtype, row), dense((shape[1],), "float32")
    backward, training = "backward" in row["op"], not (row["op"].endswith("eval") or row.get("training") is False)
    name = "native_batch_norm" + ("_backward" if backward else "")
    args: dict[str, Any] = {"grad_out": x} if backward else {}
    return (call(name, [x, w, w], **args, input=x, weight=w, training=training),)


def nll_loss(row: Row) -> Calls:
    """nll_loss, nll_loss_backward, cross_entropy (log_softmax, then nll_loss)."""
    (rows, columns), dtype = shapes_of(row)[0], dtype_of(row)
    x, target, loss = dense((rows, columns), dtype), dense((rows,), "int64"), TensorSpec((), (), dtype)
    forward = call("nll_loss_forward", loss, self=x, target=target)
    if "backward" in row["op"]:
        return (call("nll_loss_backward", x, grad_output=loss, self=x, target=target),)
    return (call("_log_softmax", x, self=x, dim=-1), forward) if row["op"] == "cross_entropy" else (forward,)


def reduction(row: Row) -> Calls:
    """A reduction over `dim` (one, several, or all); ops_bench's names sum_dim (rows) and mean_dim (columns)."""
    shape, dtype, op = shapes_of(row)[0], dtype_of(row), row["op"]
    default = {"sum_dim": [0], "mean_dim": [-1], "argmax": [-1], "argmin": [-1]}.get(op) if len(shape) > 1 else None
    dims = row.get("dim", default)
    name = (
        op.removesuffix("_dim").replace("norm", "linalg_vector_norm")
        if op in ("norm", "norm_dim")
        else op.removesuffix("_dim")
    )
    kind = "bool" if name in ("any", "all") else "int64" if name.startswith("arg") else dtype
    if dims is None:
        return (call(name, TensorSpec((), (), kind), self=dense(shape, dtype)),)
    chosen = {int(d) % len(shape) for d in (dims if isinstance(dims, list) else [dims])}
    kept = tuple(n for i, n in enumerate(shape) if i not in chosen)
    outs = [dense(kept, kind)] * (2 if name in ("var_mean", "max", "min") else 1)
    return (call(name, outs, self=dense(shape, dtype), dim=tuple(sorted(chosen))),)


def scan(row: Row) -> Calls:
    x = dense(shapes_of(row)[0], dtype_of(row))
    return (call(row["op"], x, self=x, dim=int(row.get("dim", -1))),)


def sort(row: Row) -> Calls:
    """sort, argsort, topk (k), topk2."""
    shape, dtype, dim = shapes_of(row)[0], dtype_of(row), int(row.get("dim", -1))
    x = dense(shape, dtype)
    if row["op"].startswith("topk"):
        k = number(row, "k", 2 if row["op"] == "topk2" else 1)
        out = list(shape)
        out[dim] = k
        return (call("topk", [dense(tuple(out), dtype), dense(tuple(out), "int64")], self=x, k=k, dim=dim),)
    return (call("sort", [x, dense(shape, "int64")], self=x, dim=dim),)


def search(row: Row) -> Calls:
    """unique, nonzero, bincount, histc, multinomial, searchsorted, isin, randperm."""
    shape, dtype, op = shapes_of(row)[0], dtype_of(row, default="int64"), row["op"]
    name = {"unique": "_unique2", "unique_inverse": "_unique2"}.get(op, op)
    x = dense(shape, dtype)
    if name == "randperm":
        return (call(name, dense(shape, "int64")),)
    return (call(name, dense((max(math.prod(shape) // 4, 1),), "int64"), self=x),)
