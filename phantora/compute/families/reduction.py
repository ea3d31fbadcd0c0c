"""Reductions: sum, mean, norms, extrema, any/all, variance, over all or some dimensions.

ATen's reduce_kernel (ATen/native/cuda/Reduce.cuh) puts threads along the fastest dimension. inner: that dimension is
reduced, at = (results, elements that lie together, further elements of a result), 'short' below 128 of them (they are
not read in vectors) and 'tiny' below 8; outer: it survives, at = (elements of
a result, results that lie together, further results); all: one result.
"""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items, stream, width
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work, base_name, first_tensor, is_dense, nbytes, numel, written

FAMILY = "reduction"

# fmt: off
NAMES = (
    "sum", "mean", "nansum", "nanmean", "prod", "any", "all", "max", "min", "amax", "amin", "aminmax", "argmax",
    "argmin", "norm", "linalg_vector_norm", "linalg_norm", "var", "std", "var_mean", "std_mean", "logsumexp",
    "count_nonzero", "_local_scalar_dense", "item", "equal", "isfinite_all", "median", "nanmedian", "mode", "kthvalue",
    "renorm", "dist", "trace",
)
_LIKE = {"argmin": "argmax", "min": "max", "amin": "amax", "aminmax": "amax", "std": "var_mean", "var": "var_mean",
         "std_mean": "var_mean", "mean": "sum", "prod": "sum", "nansum": "sum", "all": "any", "norm": "linalg_vector_norm",
         "count_nonzero": "any", "logsumexp": "amax", "median": "max", "mode": "max", "kthvalue": "max"}
# fmt: on
WEIGHTS = (0.4, 0.65, 0.45)
_CAST_FIRST = ("bool", "int8", "uint8", "int16", "int32")  # a kernel of its own makes them int64
# Time per element against that of a sum, and what the second kernel over few wide results adds.
_SLOW = {"var_mean": (1.8, 18_000.0), "argmax": (1.5, 10_000.0), "max": (1.6, 15_000.0), "amax": (1.15, 3000.0)}


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    source = first_tensor(call)
    targets = written(call)
    if source is None:
        return ()
    kept, total = max((numel(t) for t in targets), default=1), max(numel(source), 1)
    if kept == total:
        moved = nbytes(source) + sum(map(nbytes, targets))
        return (stream(FAMILY, (f"{name}_nothing", "clone"), source.dtype, moved, flops=total),)
    if kept <= 1:
        like = "linalg_vector_norm_all" if "norm" in name else "sum_all"
        if name in ("sum", "prod", "mean", "nansum") and source.dtype in _CAST_FIRST:
            name += "_cast"
        return (stream(FAMILY, (f"{name}_all", like), source.dtype, nbytes(source), num_kernels=2, flops=total),)
    if not is_dense(source):
        return (items(FAMILY, "offsets-2d-1", total, nbytes(source), op="view/any"),)
    kind, at = _position(call, source, kept, total)
    names = (name, _LIKE.get(name, "sum"), "sum")
    return (
        Work(
            family=FAMILY,
            curves=tuple(f"reduce/{kind}/{n}/{width(source.dtype)}" for n in names),
            at=at,
            flops=total,
            bytes=nbytes(source),
            num_kernels=2 if kept < 4096 and total // kept > 4096 else 1,
        ),
    )


def _position(call: OpCall, source: TensorSpec, kept: int, total: int) -> tuple[str, tuple[int, int, int]]:
    """(inner or outer, position) as the module says; the fastest dimensions are walked while they share their fate."""
    reduced = _reduced_dims(call, source)
    order = sorted((i for i, n in enumerate(source.shape) if n > 1), key=lambda i: (source.stride[i], -i))
    together, is_reduced = 1, bool(order) and order[0] in reduced
    for i in order:
        if (i in reduced) != is_reduced:
            break
        together *= source.shape[i]
    if is_reduced:
        kind = "tiny" if together < 8 else "short" if together < 128 else "inner"
        return kind, (kept, together, max(total // kept // together, 1))
    return "outer", (max(total // kept, 1), together, max(kept // together, 1))


def _reduced_dims(call: OpCall, source: TensorSpec) -> set[int]:
    dims = call.arg("dim")
    dims = call.arg("dims") if dims is None else dims
    rank = max(len(source.shape), 1)
    if isinstance(dims, int):
        return {dims % rank}
    return {int(d) % rank for d in dims} if isinstance(dims, tuple) and dims else set(range(rank))  # type: ignore[arg-type]


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a reduction `at` a position of the module's text."""
    _, kind, name, size = curve.split("/")
    count = float(at[0] * at[1] * at[2])
    slow, extra_ns = _SLOW.get(name, (1.0, 0.0))
    moved = roof.stream_ns(count * int(size))
    if kind == "tiny":  # a thread per result
        return LAUNCH_FLOOR_NS + slow * roof.items_ns(at[0], _TINY_PER_S) + moved
    if kind == "short":  # parts of a warp per result
        return LAUNCH_FLOOR_NS + slow * roof.items_ns(count, _SHORT_PER_S) + 0.5 * moved
    if kind == "inner":  # blocks per result; few results are walked by few blocks
        return 4500.0 + slow * (1.1 * moved + roof.items_ns(at[1] * at[2], _WALKED_PER_S))
    return 7500.0 + extra_ns + slow * moved + 65.0 * math.sqrt(at[0])


# Fitted on the H200 sweeps: results per second, elements per second.
_TINY_PER_S, _SHORT_PER_S, _WALKED_PER_S = 65e9, 160e9, 83e9
