"""Reductions: sum, mean, norms, extrema, any/all, variance, over all or some dimensions."""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items, rows, stream
from phantora.compute.work import Work, base_name, first_tensor, nbytes, numel, written

FAMILY = "reduction"

# fmt: off
NAMES = (
    "sum", "mean", "nansum", "nanmean", "prod", "any", "all", "max", "min", "amax", "amin", "aminmax", "argmax",
    "argmin",
    "norm", "linalg_vector_norm", "linalg_norm", "var", "std", "var_mean", "std_mean", "logsumexp", "count_nonzero",
    "_local_scalar_dense", "item", "equal", "isfinite_all", "median", "nanmedian", "mode", "kthvalue", "renorm",
    "dist", "trace",
)
# fmt: on
_SHORT_ROW = 128  # columns that a part of a warp reduces; the kernel then runs at a rate of rows
_LIKE = {"argmax": "argmax", "argmin": "argmax", "max": "argmax", "min": "argmax", "amax": "argmax", "amin": "argmax"}


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    source = first_tensor(call)
    targets = written(call)
    if source is None:
        return ()
    kept = max((numel(t) for t in targets), default=1)
    total = max(numel(source), 1)
    if name in ("sum", "mean") and kept == total:
        return (stream(FAMILY, ("clone",), source.dtype, nbytes(source) + sum(map(nbytes, targets)), flops=total),)
    if kept <= 1:
        like = "norm" if "norm" in name else "sum"
        return (stream(FAMILY, (like,), source.dtype, nbytes(source), flops=total),)
    if _reduces_outer(call, source):
        return (rows(FAMILY, ("sum_dim",), source.dtype, total // kept, kept),)
    if source.stride and min(source.stride) > 1:
        return (items(FAMILY, "offsets", total, nbytes(source)),)
    if total // kept <= _SHORT_ROW:
        return (items(FAMILY, "short_rows", kept, nbytes(source), flops=total),)
    return (rows(FAMILY, (_LIKE.get(name, "mean_dim"),), source.dtype, kept, total // kept),)


def _reduces_outer(call: OpCall, source: TensorSpec) -> bool:
    """The fastest dimension survives: columns are reduced, as in the gradient of a bias."""
    dims = call.arg("dim")
    if dims is None:
        dims = call.arg("dims")
    chosen = (dims,) if isinstance(dims, int) else dims
    if not isinstance(chosen, tuple) or not chosen or not source.shape:
        return False
    rank = len(source.shape)
    wide = [i for i in range(rank) if source.shape[i] > 1]
    fastest = min(wide, key=lambda i: source.stride[i] or 1 << 60, default=rank - 1)
    return fastest not in {int(d) % rank for d in chosen}  # type: ignore[arg-type]
