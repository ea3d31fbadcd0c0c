"""Operators that no family knows, and those that launch nothing.

Custom operators (Triton kernels, extensions) are priced by the bytes of their tensors: read once, written once. What is
lost is reuse across passes, so such prices are lower bounds; they carry the source 'roofline'.
"""

from __future__ import annotations

from phantora.compute.call import OpCall
from phantora.compute.families.streaming import items
from phantora.compute.work import Work, base_name, inputs, numel, read, traffic, written

# Views, allocations and bookkeeping: they run on the host only.
# fmt: off
NAMES = (
    "view", "_unsafe_view", "reshape", "_reshape_alias", "as_strided", "as_strided_", "alias", "detach", "detach_",
    "expand", "permute",
    "transpose", "transpose_", "t", "t_", "unsqueeze", "unsqueeze_", "squeeze", "squeeze_", "select", "slice",
    "narrow", "split",
    "split_with_sizes", "unbind", "chunk", "diagonal", "unfold", "view_as_real", "view_as_complex", "_conj",
    "_neg_view", "lift_fresh",
    "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "resize_as_", "set_",
    "swapaxes",
    "record_stream", "is_same_size", "is_set_to", "_has_compatible_shallow_copy_type", "_version", "requires_grad_",
    "_assert_async",
    "_unwrap_subclass", "_make_dual", "sym_size", "sym_numel", "sym_stride", "storage_offset", "dim", "_pin_memory",
    "is_pinned",
    "_record_function_enter_new", "_record_function_exit", "_assert_tensor_metadata", "_use_cudnn_ctc_loss",
    "cudnn_is_acceptable",
)
# fmt: on


def describe(call: OpCall) -> tuple[Work, ...]:
    """Nothing is launched; _assert_async reads one value in one kernel."""
    if base_name(call.name) == "_assert_async":
        return (items("fallback", "offsets-2d-1", 1, 1),)
    return ()


def looks_pointwise(call: OpCall) -> bool:
    """The output has as many elements as the largest tensor that is read."""
    targets = written(call)
    if not targets:
        return False
    largest = max((numel(t) for t in read(call)), default=0)
    return max(map(numel, targets)) == largest


def unknown(call: OpCall) -> tuple[Work, ...]:
    """Unknown aten operator: its traffic, or its elements if they are many for their bytes."""
    moved = traffic(call)
    count = max((numel(t) for t in (*inputs(call), *call.outputs)), default=0)
    return (
        Work(
            family="fallback",
            curves=(f"items/unknown-{base_name(call.name)}/any", "items/offsets-2d-1/any"),
            at=(max(count, 1), max(moved, 1)),
            flops=count,
            bytes=moved,
        ),
    )


def custom(call: OpCall) -> tuple[Work, ...]:
    """An operator outside aten: the bytes of its tensors at the rate of a plain streaming kernel."""
    moved = traffic(call)
    name = base_name(call.name)
    return (
        Work(family="custom", curves=(f"stream/all/{name}/4", "stream/all/add/4"), at=(max(moved, 1),), bytes=moved),
    )
