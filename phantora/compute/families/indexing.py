"""Lookups and scattered writes: embedding, gather, index, scatter, index_add, index_put, masked operators."""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.elementwise import pointwise
from phantora.compute.families.streaming import items, stream
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import (
    Work,
    base_name,
    first_tensor,
    inputs,
    is_contiguous,
    item_bytes,
    nbytes,
    numel,
    read,
    written,
)

FAMILY = "indexing"
EMBEDDING_FAMILY = "embedding"
WEIGHTS = (1.0, 1.0, 0.5)

# fmt: off
_LOOKUPS = ("embedding", "index_select", "gather", "index", "_unsafe_index", "take", "take_along_dim", "_embedding_bag",
            "_embedding_bag_forward_only", "embedding_bag", "index_select_backward")
_SCATTERS = ("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_add",
             "index_add_",
             "index_copy", "index_copy_", "index_fill", "index_fill_", "index_reduce", "index_reduce_", "put_", "put",
             "_index_put_impl_", "index_put", "index_put_", "_unsafe_index_put")
# fmt: on
_MASKED = ("masked_fill", "masked_fill_", "where", "masked_scatter", "masked_scatter_", "masked_select")
_EMBEDDING_BACKWARD = (
    "embedding_dense_backward",
    "_embedding_bag_dense_backward",
    "_embedding_bag_backward",
    "embedding_backward",
    "_embedding_bag_per_sample_weights_backward",
    "embedding_renorm_",
)
_BAGS = ("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
NAMES = _LOOKUPS + _SCATTERS + _MASKED + _EMBEDDING_BACKWARD

# ATen/native/cuda/Embedding.cu: up to this many indices one kernel adds row by row, beyond it indices are sorted.
_UNSORTED_INDICES = 3072
# Kernels of the sorted path as profiled: positions, radix sort of 64-bit keys (histogram, prefix sum, 8 passes, 10
# memsets), unique_by_key, segment offsets (6), partial sums, scatter, zeros.
_SORTED_KERNELS = 31
_SORTED_FIXED_NS = 88_000.0


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    if name in _EMBEDDING_BACKWARD:
        return _embedding_backward(call)
    if name in _LOOKUPS:
        return _lookup(call, name)
    return _scatter(call, name) if name in _SCATTERS else _masked(call, name)


def _lookup(call: OpCall, name: str) -> tuple[Work, ...]:
    family = EMBEDDING_FAMILY if "embedding" in name else FAMILY
    table, index = first_tensor(call, "weight", "self"), _index(call)
    out = max(written(call), key=numel, default=None)
    if table is None or out is None:
        return ()
    width = _row_width(call, name, table, index, out)
    gathered = max(numel(index) if index is not None else 0, 1) * width if "bag" in name else numel(out)
    if name in _BAGS:
        moved = gathered * item_bytes(table.dtype) + nbytes(out)
        variant = f"{item_bytes(table.dtype)}-{call.arg('mode', 0)}"
        return (items(family, "embedding_bag", gathered, moved, op=variant, more=(width, numel(out))),)
    moved = gathered * item_bytes(table.dtype) + nbytes(out) + (nbytes(index) if index is not None else 0)
    if width > 1 and width * item_bytes(table.dtype) % 16 == 0 and name not in _BAGS:
        kernels = 1
        like = ("index_select" if name == "index_select" else "embedding",)
        count = gathered // width
        return (
            Work(
                family=family,
                curves=(f"row_gather/{name}/{item_bytes(table.dtype)}", *(f"row_gather/{op}/4" for op in like)),
                at=(max(count, 1), width * item_bytes(table.dtype)),
                bytes=moved,
                num_kernels=kernels,
            ),
        )
    variant = f"{item_bytes(table.dtype)}-{'rows' if _is_expanded(index) else 'elements'}"
    trailing = _trailing(call, table, out)
    kind = f"{name}-{'rows' if trailing > 1 else 'elements'}"
    return (items(family, kind, numel(out), moved, op=variant, like="index-rows", more=(trailing,)),)


def _is_expanded(index: TensorSpec | None) -> bool:
    return index is not None and 0 in index.stride


def _trailing(call: OpCall, table: TensorSpec, out: TensorSpec) -> int:
    """Elements that lie together behind the last indexed dimension."""
    given = call.arg("indices")
    if isinstance(given, tuple) and given:
        last = max((i for i, index in enumerate(given) if isinstance(index, TensorSpec)), default=0)
        return math.prod(table.shape[last + 1 :])
    if "index_put" in call.name:  # its indices are not known: taken to address single elements
        return 1
    dim = call.arg("dim", 0)
    dim = dim % max(len(out.shape), 1) if isinstance(dim, int) else 0
    return math.prod(out.shape[dim + 1 :])


def _index(call: OpCall) -> TensorSpec | None:
    found = first_tensor(call, "indices", "index")
    if found is not None:
        return found
    whole = [t for t in inputs(call) if t.dtype in ("int64", "int32", "bool", "uint8")]
    return max(whole, key=numel, default=None)


def _row_width(call: OpCall, name: str, table: TensorSpec, index: TensorSpec | None, out: TensorSpec) -> int:
    """Elements of a gathered row that lie together; gather has rows when its index is expanded along them."""
    if name == "gather":
        if index is None:
            return 1
        width = 1
        for size, stride in zip(reversed(index.shape), reversed(index.stride)):
            if stride != 0:
                break
            width *= size
        return width
    if name in ("index", "_unsafe_index"):  # one index of the first dimension gathers rows (vectorized_gather_kernel)
        whole = (
            index is not None
            and index.dtype in ("int64", "int32")
            and len(out.shape) == len(index.shape) + len(table.shape) - 1
        )
        return math.prod(table.shape[1:]) if whole and table.shape[1:] == out.shape[len(index.shape) :] else 1
    if name in ("take", "take_along_dim"):
        return 1
    if name == "index_select":
        dim = call.arg("dim", 0)
        return math.prod(table.shape[int(dim) % max(len(table.shape), 1) + 1 :])  # type: ignore[arg-type]
    return max(table.shape[-1], 1) if len(table.shape) > 1 else 1


def _scatter(call: OpCall, name: str) -> tuple[Work, ...]:
    source = first_tensor(call, "src", "source", "values", "value") or _index(call)
    if source is None:
        return ()
    index, target = _index(call), first_tensor(call, "self")
    count = max(numel(source), numel(index) if index is not None and name.startswith("scatter") else 1)
    if name.startswith("index_fill") and target is not None and index is not None:
        dim = call.arg("dim", 0)
        count = numel(target) // max(target.shape[int(dim)], 1) * numel(index)  # type: ignore[arg-type]
    size = item_bytes(target.dtype if target is not None else source.dtype)
    moved = sum(nbytes(t) for t in read(call) if t is not target) + 2 * count * size
    kind, kernels = name.strip("_"), 1
    if "index_put" in name:
        kind = "index_put"
        if call.arg("accumulate", False):
            kind, kernels = "index_put_accumulate", 23
    trailing = _trailing(call, target, target) if target is not None else 1
    variant = f"{size}-{'rows' if _is_expanded(index) else 'elements'}"
    kind += "-rows" if trailing > 1 else "-elements"
    places = numel(target) // max(trailing, 1) if target is not None else 1
    work = items(
        FAMILY, kind, count, moved, num_kernels=kernels, op=variant, like="scatter_add-rows",
        more=(trailing, places),
    )  # fmt: skip
    if not name.endswith("_") and target is not None:  # out of place: a copy of the target first
        return (stream(FAMILY, ("clone",), target.dtype, 2 * nbytes(target)), work)
    return (work,)


def _masked(call: OpCall, name: str) -> tuple[Work, ...]:
    if name in ("masked_select", "masked_scatter", "masked_scatter_"):  # a prefix sum of the mask, then a copy
        source = first_tensor(call)
        size = str(item_bytes(source.dtype)) if source else ""
        return (
            (items(FAMILY, "masked_select", numel(source), 3 * nbytes(source), num_kernels=6, op=size),)
            if source
            else ()
        )
    targets, sources = written(call), [t for t in read(call) if t.shape]
    if not targets:
        return ()
    if name == "masked_fill":  # a copy, then the fill in place (ATen/native/TensorAdvancedIndexing.cpp)
        copy = stream(FAMILY, ("clone",), targets[0].dtype, 2 * nbytes(targets[0]))
        return (copy, pointwise(FAMILY, "masked_fill_", sources, targets))
    return (pointwise(FAMILY, name, sources, targets),)


def _embedding_backward(call: OpCall) -> tuple[Work, ...]:
    grad, index = first_tensor(call, "grad_output", "grad", "self"), _index(call)
    out = max(written(call), key=numel, default=None)
    if grad is None or index is None or out is None or not out.shape:
        return ()
    count, width = max(numel(index), 1), out.shape[-1]
    vocabulary = numel(out) // max(width, 1)
    moved = nbytes(grad) + nbytes(out) + 8 * nbytes(index)
    if "bag" in call.name and call.arg("mode", 0) == 2:  # the greatest of a bag: zeros, then one atomic add per value
        return (
            items(EMBEDDING_FAMILY, "embedding_bag_max_backward", numel(grad), moved, num_kernels=2, more=(width,)),
        )
    if count <= _UNSORTED_INDICES and "bag" not in call.name:
        zeros = stream(EMBEDDING_FAMILY, ("zero_",), out.dtype, nbytes(out))
        rows = Work(
            family=EMBEDDING_FAMILY, curves=("embedding_rows/backward",), at=(count, width), bytes=2 * nbytes(grad)
        )
        return (zeros, rows)
    return (
        *_made_contiguous(grad),
        Work(
            family=EMBEDDING_FAMILY,
            curves=(f"embedding_sorted/{'bags' if 'bag' in call.name else 'rows'}/{item_bytes(out.dtype)}",),
            at=(count, width, max(vocabulary, 1)),
            bytes=moved,
            num_kernels=_SORTED_KERNELS,
        ),
    )


def _made_contiguous(grad: TensorSpec) -> tuple[Work, ...]:
    """A slice of a larger gradient (one table's part of a concatenation) is copied first."""
    if is_contiguous(grad) or len(grad.stride) != len(grad.shape):
        return ()
    dense = TensorSpec(grad.shape, tuple(math.prod(grad.shape[i + 1 :]) for i in range(len(grad.shape))), grad.dtype)
    return (pointwise(EMBEDDING_FAMILY, "clone", [grad], [dense]),)


def row_gather_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time to gather `at` = (rows, bytes of a row): a block per row, or the traffic."""
    return LAUNCH_FLOOR_NS + max(roof.items_ns(at[0], 1.66e9), roof.stream_ns(2.0 * at[0] * at[1]))


def embedding_rows_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Unsorted backward `at` = (indices, width): blocks of 32 columns walk all indices (256: 10.6 us, 1,024: 27.8)."""
    return LAUNCH_FLOOR_NS + 3500 + 22.4 * at[0] * max(1.0, at[1] / 768) ** 0.6


def embedding_sorted_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Sorted backward `at` = (indices, width, vocabulary): kernels of fixed cost, table zeroed, gradients added.

    compute_grad_weight and sum_and_scatter each handle 137e9 gradients/s whatever their dtype (33.5 million: 244 us);
    rows narrower than 128 leave threads idle.
    """
    count, width, vocabulary = at
    size = int(curve.rsplit("/", 1)[1])
    sums = 2 * roof.items_ns(count * max(width, 128), 137e9)
    return _SORTED_FIXED_NS + sums + roof.stream_ns(vocabulary * width * size + 16.0 * 20 * count)
