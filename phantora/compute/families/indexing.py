"""Lookups and scattered writes: embedding, gather, index, scatter, index_add, index_put, masked operators."""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.elementwise import pointwise
from phantora.compute.families.streaming import items, stream
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work, base_name, first_tensor, inputs, item_bytes, nbytes, numel, read, written

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
NAMES = _LOOKUPS + _SCATTERS + _MASKED + _EMBEDDING_BACKWARD

# ATen/native/cuda/Embedding.cu: up to this many indices one kernel adds row by row, beyond it indices are sorted.
_UNSORTED_INDICES = 3072
# Kernels of the sorted path as profiled: radix sort of 64-bit keys (histogram, prefix sum, 8 passes, with their
# memsets), unique_by_key, segment offsets (5), partial sums, scatter, zeros.
_SORTED_KERNELS = 22


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
    width = _row_width(name, table, index, out)
    gathered = max(numel(index) if index is not None else 0, 1) * width if "bag" in name else numel(out)
    moved = gathered * item_bytes(table.dtype) + nbytes(out) + (nbytes(index) if index is not None else 0)
    if width > 1 and width * item_bytes(table.dtype) % 16 == 0:
        kernels = 2 if "bag" in name else 1
        like = ("index_select" if name == "index_select" else "embedding",)
        count = gathered // width
        return (
            Work(
                family=family,
                curves=tuple(f"row_gather/{op}" for op in like),
                at=(max(count, 1), width * item_bytes(table.dtype)),
                bytes=moved,
                num_kernels=kernels,
            ),
        )
    return (items(family, "gather", numel(out), moved),)


def _index(call: OpCall) -> TensorSpec | None:
    found = first_tensor(call, "indices", "index")
    if found is not None:
        return found
    whole = [t for t in inputs(call) if t.dtype in ("int64", "int32", "bool", "uint8")]
    return max(whole, key=numel, default=None)


def _row_width(name: str, table: TensorSpec, index: TensorSpec | None, out: TensorSpec) -> int:
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
    if name in ("index", "_unsafe_index", "take", "take_along_dim"):
        return 1
    return max(table.shape[-1], 1) if len(table.shape) > 1 else 1


def _scatter(call: OpCall, name: str) -> tuple[Work, ...]:
    source = first_tensor(call, "src", "source", "values", "value") or _index(call)
    if source is None:
        return ()
    count = max(numel(source), numel(_index(call) or source) if name.startswith("scatter") else 1)
    target = first_tensor(call, "self")
    moved = sum(nbytes(t) for t in read(call) if t is not target) + 2 * count * item_bytes(source.dtype)
    kind, kernels = _scatter_kind(call, name)
    if not name.endswith("_") and target is not None:  # out of place: a copy of the target first
        copy = stream(FAMILY, ("clone",), target.dtype, 2 * nbytes(target))
        return (copy, items(FAMILY, kind, count, moved, num_kernels=kernels))
    if name == "index_add_" or name == "scatter_add_":
        return (
            Work(family=FAMILY, curves=(f"{kind}/{name[:-1]}",), at=(count, moved), bytes=moved, num_kernels=kernels),
        )
    return (items(FAMILY, kind, count, moved, num_kernels=kernels),)


def _scatter_kind(call: OpCall, name: str) -> tuple[str, int]:
    """(rate, kernels). index_put with accumulate sorts its indices first."""
    if "index_put" in name:
        return ("index_put_accumulate", 12) if call.arg("accumulate", False) else ("scatter", 1)
    if name.startswith("index_add"):
        return "index_add", 1
    return ("scatter_atomic" if "add" in name or "reduce" in name else "scatter"), 1


def _masked(call: OpCall, name: str) -> tuple[Work, ...]:
    if name in ("masked_select", "masked_scatter", "masked_scatter_"):  # a prefix sum of the mask, then a copy
        source = first_tensor(call)
        return (items(FAMILY, "offsets", 3 * numel(source), 3 * nbytes(source), num_kernels=5),) if source else ()
    targets = written(call)
    return (pointwise(FAMILY, "add", [t for t in read(call) if t.shape], targets),) if targets else ()


def _embedding_backward(call: OpCall) -> tuple[Work, ...]:
    grad, index = first_tensor(call, "grad_output", "grad", "self"), _index(call)
    out = max(written(call), key=numel, default=None)
    if grad is None or index is None or out is None or not out.shape:
        return ()
    count, width = max(numel(index), 1), out.shape[-1]
    vocabulary = numel(out) // max(width, 1)
    moved = nbytes(grad) + nbytes(out) + 8 * nbytes(index)
    if count <= _UNSORTED_INDICES and "bag" not in call.name:
        zeros = stream(EMBEDDING_FAMILY, ("zero_",), out.dtype, nbytes(out))
        rows = Work(
            family=EMBEDDING_FAMILY, curves=("embedding_rows/backward",), at=(count, width), bytes=2 * nbytes(grad)
        )
        return (zeros, rows)
    return (
        Work(
            family=EMBEDDING_FAMILY,
            curves=(
                f"embedding_sorted/{'float32' if item_bytes(out.dtype) > 2 else 'bfloat16'}",
                "embedding_sorted/float32",
            ),
            at=(count, width, max(vocabulary, 1)),
            bytes=moved,
            num_kernels=_SORTED_KERNELS,
        ),
    )


def row_gather_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time to gather `at` = (rows, bytes of a row): a block per row, or the traffic."""
    return LAUNCH_FLOOR_NS + max(roof.items_ns(at[0], 1.66e9), roof.stream_ns(2.0 * at[0] * at[1]))


def atomic_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of index_add or scatter_add `at` = (elements, bytes)."""
    rate = 138e9 if curve.startswith("index_add") else 290e9
    return LAUNCH_FLOOR_NS + max(roof.items_ns(at[0], rate), roof.stream_ns(at[1]))


def embedding_rows_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Unsorted backward `at` = (indices, width): blocks of 32 columns walk all indices (256: 10.6 us, 1,024: 27.8)."""
    waves = max(1.0, at[1] / 32 / (8 * roof.num_sms))
    return LAUNCH_FLOOR_NS + 3500 + 22.4 * at[0] * waves


def embedding_sorted_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Sorted backward `at` = (indices, width, vocabulary): kernels of fixed cost, table zeroed, gradients added.

    compute_grad_weight and sum_and_scatter each handle 137e9 gradients/s whatever their dtype (33.5 million: 244 us);
    rows narrower than 128 leave threads idle.
    """
    count, width, vocabulary = at
    size = 4 if curve.endswith("float32") else 2
    sums = 2 * roof.items_ns(count * max(width, 128), 137e9)
    return _SORTED_KERNELS * 4000.0 + sums + roof.stream_ns(vocabulary * width * size + 16.0 * 20 * count)
