"""Which family prices which operator, and the models that the families' work is timed with.

Adding an operator: give it a name in the NAMES of a family whose kernels move data in the same way. Names that no
family knows are priced by their traffic (`fallback`), so nothing is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from phantora.compute.call import OpCall
from phantora.compute.families import (
    attention,
    convolution,
    elementwise,
    factorization,
    fallback,
    fused,
    gemm,
    indexing,
    movement,
    normalization,
    optimizer,
    reduction,
    rnn,
    softmax,
    sorting,
    spatial,
    streaming,
)
from phantora.compute.roof import Roof
from phantora.compute.table import Kriging
from phantora.compute.work import Work, base_name, flag

Describe = Callable[[OpCall], "tuple[Work, ...]"]
ModelNs = Callable[[str, "tuple[int, ...]", Roof], float]

_BY_NAME: dict[str, Describe] = {
    name: family.describe
    for family in (
        gemm,
        attention,
        convolution,
        rnn,
        factorization,
        normalization,
        softmax,
        reduction,
        movement,
        indexing,
        sorting,
        optimizer,
        fallback,
    )
    for name in family.NAMES
}
_BY_PREFIX: tuple[tuple[str, Describe], ...] = (
    ("_foreach_", optimizer.describe),
    *((prefix, spatial.describe) for prefix in (*spatial.PREFIXES, *spatial.FFT_NAMES)),
)

# The word before the first '/' of a curve -> (model, how its residuals vary).
# fmt: off
MODELS: dict[str, tuple[ModelNs, Kriging]] = {
    "gemm": (gemm.model_ns, Kriging(gemm.WEIGHTS, spread=0.2, left_to_others=0.1, scatter=0.07)),
    "sdpa": (attention.model_ns, Kriging(attention.WEIGHTS, spread=0.2, left_to_others=0.1, scatter=0.04)),
    "conv": (convolution.model_ns, Kriging(convolution.WEIGHTS, spread=0.25, left_to_others=0.25, scatter=0.15)),
    "linalg": (factorization.model_ns, Kriging(factorization.WEIGHTS)),
    "rnn_chain": (rnn.chain_ns, Kriging(rnn.WEIGHTS)),
    "batch_norm": (normalization.batch_norm_ns, Kriging(normalization.WEIGHTS, left_to_others=0.05, scatter=0.08)),
    "stream": (streaming.stream_ns, Kriging(streaming.WEIGHTS["stream"])),
    "rows": (streaming.rows_ns, Kriging(streaming.WEIGHTS["rows"], spread=0.2)),
    "items": (streaming.items_ns, Kriging(streaming.WEIGHTS["items"], spread=0.2, left_to_others=0.25)),
    "row_gather": (indexing.row_gather_ns, Kriging((1.0, 1.0))),
    "embedding_rows": (indexing.embedding_rows_ns, Kriging((1.0, 1.0))),
    "embedding_sorted": (indexing.embedding_sorted_ns, Kriging(indexing.WEIGHTS)),
    "sort": (sorting.rows_ns, Kriging(sorting.WEIGHTS, spread=0.2, left_to_others=0.4, scatter=0.02)),
    "fused": (fused.model_ns, Kriging(fused.WEIGHTS)),
    "reduce": (reduction.model_ns, Kriging(reduction.WEIGHTS, spread=0.2, left_to_others=0.25)),
    "foreach": (optimizer.model_ns, Kriging(optimizer.WEIGHTS)),
}
# fmt: on


def describe(call: OpCall) -> tuple[Work, ...]:
    """The work of `call`; empty only when it launches nothing (views, allocations, empty tensors)."""
    name = base_name(call.name)
    if name.startswith(fused.PREFIX):
        return fused.describe(call)
    if "::" in name:
        like = flag(call, "priced_as", "")  # somebody else's kernel that does what a known operator does
        return _guessed(describe(replace(call, name=str(like), flags=())) if like else fallback.custom(call))
    family = _BY_NAME.get(name) or _BY_NAME.get(name.removesuffix("_")) or _by_prefix(name)
    if family is fallback.describe:
        return family(call)
    if family is not None:
        return family(call) or _guessed(fallback.unknown(call))
    is_functor = name.rstrip("_") in elementwise.NAMES
    works = elementwise.describe(call) if is_functor or fallback.looks_pointwise(call) else ()
    return works if works and is_functor else _guessed(works or fallback.unknown(call))


def _guessed(works: tuple[Work, ...]) -> tuple[Work, ...]:
    return tuple(replace(work, guessed=True) for work in works)


def is_known(name: str) -> bool:
    """Whether a family prices operators of this name (without 'aten::')."""
    return name in _BY_NAME or name.removesuffix("_") in _BY_NAME or _by_prefix(name) is not None


def _by_prefix(name: str) -> Describe | None:
    for prefix, family in _BY_PREFIX:
        if name.startswith(prefix):
            return family
    return None
