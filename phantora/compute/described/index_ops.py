"""Rows of lookups and scattered writes: vocab (rows of the table), dim (their width), tokens (indices)."""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.described.specs import Calls, Row, call, dense, dtype_of, number, shapes_of


def _sizes(row: Row) -> tuple[int, int, int]:
    """(rows of the table, width, indices), also from shapes: the table's, then the indices'."""
    if "vocab" in row:
        return number(row, "vocab"), number(row, "dim", 1), number(row, "tokens")
    shapes = shapes_of(row)
    table = shapes[0]
    width, count = 1, 1
    for size in table[1:]:
        width *= size
    for size in shapes[1] if len(shapes) > 1 else (number(row, "tokens", table[0]),):
        count *= size
    return table[0], width, count


def lookup(row: Row) -> Calls:
    """embedding, index_select, index, gather along rows."""
    vocabulary, width, tokens = _sizes(row)
    dtype, op = dtype_of(row), row["op"]
    table, rows, index = dense((vocabulary, width), dtype), dense((tokens, width), dtype), dense((tokens,), "int64")
    if op == "embedding":
        return (call(op, rows, weight=table, indices=index),)
    if op == "index":
        return (call(op, rows, self=table, indices=(index,)),)
    if op == "gather":
        shapes = shapes_of(row) if "shapes" in row else []
        if len(shapes) > 1 and len(shapes[0]) == len(shapes[1]) > 1:  # torch's own way: an index for each element
            index = TensorSpec(shapes[1], dense(shapes[1], "int64").stride, "int64")
            dim = number(row, "dim", len(shapes[0]) - 1)
            return (call(op, dense(shapes[1], dtype), self=dense(shapes[0], dtype), dim=dim, index=index),)
        return (call(op, rows, self=table, dim=0, index=TensorSpec((tokens, width), (1, 0), "int64")),)
    return (call("index_select", rows, self=table, dim=0, index=index),)


def embedding_backward(row: Row) -> Calls:
    vocabulary, width, tokens = _sizes(row)
    dtype = dtype_of(row)
    grad, table = dense((tokens, width), dtype), dense((vocabulary, width), dtype)
    return (call("embedding_dense_backward", table, grad_output=grad, indices=dense((tokens,), "int64")),)


def embedding_bag(row: Row) -> Calls:
    """embedding_bag, embedding_bag_backward (bags, or batch; mode sum, mean or max)."""
    if "vocab" not in row and len(shapes_of(row)) > 1 and len(shapes_of(row)[1]) == 2:
        bags = shapes_of(row)[1][0]
    else:
        bags = number(row, "bags", row.get("batch", max(_sizes(row)[2] // number(row, "bag", 4), 1)))
    vocabulary, width, tokens = _sizes(row)
    dtype, mode = dtype_of(row), {"sum": 0, "mean": 1, "max": 2}[str(row.get("mode", "sum"))]
    table, index, out = dense((vocabulary, width), dtype), dense((tokens,), "int64"), dense((bags, width), dtype)
    if "backward" in row["op"]:
        args = (("grad", out), ("indices", index), ("offset2bag", dense((tokens,), "int64")), ("mode", mode))
        return (OpCall("aten::_embedding_bag_dense_backward", "", args, (table,)),)
    return (call("_embedding_bag_forward_only", out, weight=table, indices=index, mode=mode),)


def scatter(row: Row) -> Calls:
    """index_add, index_copy, index_put, scatter_add, scatter, scatter_reduce of whole rows; in place."""
    vocabulary, width, tokens = _sizes(row)
    dtype, name = dtype_of(row), row["op"].rstrip("_")
    table, rows, index = dense((vocabulary, width), dtype), dense((tokens, width), dtype), dense((tokens,), "int64")
    if name in ("index_put", "index_put_accumulate", "_index_put_impl"):
        accumulate = name.endswith("accumulate") or bool(row.get("accumulate", False))
        args = {"self": table, "indices": (index,), "values": rows, "accumulate": accumulate}
        return (call("index_put_", None, mutated=("self",), **args),)
    if name.startswith("scatter"):
        wide = TensorSpec((tokens, width), (1, 0), "int64")
        return (call(f"{name}_", None, mutated=("self",), self=table, dim=0, index=wide, src=rows),)
    return (call(f"{name}_", None, mutated=("self",), self=table, dim=0, index=index, source=rows),)
