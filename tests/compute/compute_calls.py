"""Short ways to write operator calls in these tests."""

from __future__ import annotations

from phantora.compute import OpCall, TensorSpec
from phantora.compute.described.specs import call
from phantora.compute.described.specs import dense as contiguous

__all__ = ["call", "contiguous", "like", "mm", "pointwise", "transposed"]


def transposed(rows: int, columns: int, dtype: str) -> TensorSpec:
    """A (rows, columns) view whose columns lie together."""
    return contiguous((rows, columns), dtype, (1, 0))


def mm(m: int, n: int, k: int, dtype: str = "bfloat16", *, allow_tf32: bool = False) -> OpCall:
    """x @ weight.T, as a linear layer calls it."""
    flags = (("allow_tf32", allow_tf32),)
    out = contiguous((m, n), dtype)
    return call("mm", out, flags, self=contiguous((m, k), dtype), mat2=transposed(k, n, dtype))


def pointwise(name: str, out: TensorSpec, *operands: TensorSpec) -> OpCall:
    names = ("self", "other", "tensor2")
    return OpCall(f"aten::{name}", args=tuple(zip(names, operands)), outputs=(out,))


def like(tensor: TensorSpec, dtype: str) -> TensorSpec:
    return TensorSpec(tensor.shape, tensor.stride, dtype)
