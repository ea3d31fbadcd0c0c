"""Rows of foreach and fused optimizers: tensors (how many) and numel (of all), or shapes of all tensors."""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.described.specs import Calls, Row, dense, dtype_of, number, shapes_of

# The lists of tensors that the foreach benchmarks of ops_bench.py update, by (number, elements of all).
_LISTS = {
    (60, 56623104): [(768, 768)] * 48 + [(3072, 768)] * 12,
    (14, 404750336): [(4096, 4096)] * 8 + [(11008, 4096)] * 6,
    (200, 409600): [(2048,)] * 200,
    (100, 104857600): [(1024, 1024)] * 100,
}

_DEPTH = {
    "_foreach_add_": 2,
    "_foreach_lerp_": 2,
    "_foreach_addcmul_": 3,
    "_foreach_addcdiv_": 3,
    "_foreach_copy_": 2,
    "_foreach_sub_": 2,
    "_foreach_div_": 1,
    "_fused_adamw_": 4,
    "_fused_adam_": 4,
    "_fused_sgd_": 2,
    "_fused_adagrad_": 3,
    "_foreach_add": 2,
    "_foreach_sub": 2,
    "_foreach_mul_list": 2,
    "_fused_sgd_momentum": 3,
}
_NAMES = ("self", "grads", "exp_avgs", "exp_avg_sqs")


def tensor_list(row: Row) -> Calls:
    """A list operator; those whose name ends in _ update their first list in place."""
    op, dtype = row["op"], dtype_of(row)
    tensors = tuple(dense(shape, dtype) for shape in _shapes(row))
    depth = number(row, "lists", _DEPTH.get(op, 1))
    name = {"_foreach_mul_list": "_foreach_mul_", "_fused_sgd_momentum": "_fused_sgd_"}.get(op, op)
    args = tuple((key, tensors) for key in _NAMES[:depth])
    if not name.endswith("_"):
        made = tuple(TensorSpec((), (), dtype) for _ in tensors) if "norm" in name else tensors
        return (OpCall(f"aten::{name}", args=args, outputs=made),)
    mutated = ("self", "exp_avgs", "exp_avg_sqs") if name.startswith("_fused") else ("self",)
    return (OpCall(f"aten::{name}", args=args, mutated=mutated),)


def _shapes(row: Row) -> list[tuple[int, ...]]:
    if "shapes" in row:
        return shapes_of(row)
    count, numel = number(row, "tensors"), number(row, "numel")
    known = _LISTS.get((count, numel))
    if known is not None:
        return known
    if not count:
        raise ValueError("tensors must be greater than 0")
    return [(numel // count,)] * count
