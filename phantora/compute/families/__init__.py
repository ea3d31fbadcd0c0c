"""Which family prices which operator, and the models that the families' work is timed with.

Adding an operator: give it a name in the NAMES of a family whose kernels move data in the same way. Names that no
family knows are priced by their traffic (`fallback`), so nothing is free.
"""

from __future__ import annotations

from collections.abc import Callable

from phantora.compute.call import OpCall
from phantora.compute.families import (
    attention,
    convolution,
    elementwise,
    fallback,
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
from phantora.compute.work import Work, base_name

Describe = Callable[[OpCall], "tuple[Work, ...]"]
ModelNs = Callable[[str, "tuple[int, ...]", Roof], float]

_BY_NAME: dict[str, Describe] = {
    name: family.describe
    for family in (
        gemm,
        attention,
        convolution,
        rnn,
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

# The word before the first '/' of a curve -> (model, weights of its dimensions in distances).
# fmt: off
MODELS: dict[str, tuple[ModelNs, tuple[float, ...]]] = {
    "gemm": (gemm.model_ns, gemm.WEIGHTS),
    "sdpa": (attention.model_ns, attention.WEIGHTS),
    "conv": (convolution.model_ns, convolution.WEIGHTS),
    "rnn_chain": (rnn.chain_ns, rnn.WEIGHTS),
    "batch_norm": (normalization.batch_norm_ns, normalization.WEIGHTS),
    "stream": (streaming.stream_ns, streaming.WEIGHTS["stream"]),
    "rows": (streaming.rows_ns, streaming.WEIGHTS["rows"]),
    "items": (streaming.items_ns, streaming.WEIGHTS["items"]),
    "row_gather": (indexing.row_gather_ns, (1.0, 1.0)),
    "embedding_rows": (indexing.embedding_rows_ns, (1.0, 1.0)),
    "embedding_sorted": (indexing.embedding_sorted_ns, indexing.WEIGHTS),
    "sort": (sorting.rows_ns, sorting.WEIGHTS),
    "reduce": (reduction.model_ns, reduction.WEIGHTS),
    "foreach": (optimizer.model_ns, optimizer.WEIGHTS),
}
# fmt: on


def describe(call: OpCall) -> tuple[Work, ...]:
    """The work of `call`; empty only when it launches nothing (views, allocations, empty tensors)."""
    name = base_name(call.name)
    if "::" in name:
        return fallback.custom(call)
    family = _BY_NAME.get(name) or _BY_NAME.get(name.removesuffix("_")) or _by_prefix(name)
    if family is fallback.describe:
        return family(call)
    if family is not None:
        return family(call) or fallback.unknown(call)
    is_pointwise = fallback.looks_pointwise(call) or name.rstrip("_") in elementwise.NAMES
    return (elementwise.describe(call) if is_pointwise else ()) or fallback.unknown(call)


def is_known(name: str) -> bool:
    """Whether a family prices operators of this name (without 'aten::')."""
    return name in _BY_NAME or name.removesuffix("_") in _BY_NAME or _by_prefix(name) is not None


def _by_prefix(name: str) -> Describe | None:
    for prefix, family in _BY_PREFIX:
        if name.startswith(prefix):
            return family
    return None
