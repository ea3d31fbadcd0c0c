"""Copies on the device: casts, clones, joins, fills, repeats, and copies between host and device or two devices."""

from __future__ import annotations

from phantora.compute.call import OpCall
from phantora.compute.families.elementwise import pointwise
from phantora.compute.families.streaming import items, stream
from phantora.compute.work import (
    Work,
    base_name,
    first_tensor,
    flag,
    inputs,
    is_channels_last,
    is_contiguous,
    item_bytes,
    nbytes,
    numel,
    read,
    written,
)

FAMILY = "copy"
FILL_FAMILY = "fill"
TRANSFER_FAMILY = "memcpy"

# fmt: off
_COPIES = (
    "copy_", "copy", "_to_copy", "to", "clone", "contiguous", "_copy_from", "_copy_from_and_resize", "memcpy_d2d",
    "detach_copy",
    "flip", "roll", "repeat", "repeat_interleave", "tile", "rot90", "tril", "triu", "tril_", "triu_", "constant_pad_nd",
    "view_copy", "permute_copy", "expand_copy", "as_strided_copy", "slice_backward", "select_backward",
    "diagonal_backward",
    "slice_scatter", "select_scatter", "as_strided_scatter", "diagonal_scatter", "unfold_backward", "_reshape_copy",
    "resolve_conj",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "im2col", "col2im",
    "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d",
    "replication_pad3d",
)
_JOINS = ("cat", "stack", "_cat", "concat", "split_with_sizes_copy", "split_copy", "unbind_copy", "_chunk_cat",
          "_foreach_copy_out",
          "_nested_tensor_from_mask", "block_diag")
_FILLS = ("fill_", "fill", "zero_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros",
          "new_full", "new_ones",
          "arange", "range", "linspace", "logspace", "eye", "scalar_tensor", "memset", "tril_indices", "triu_indices")
# fmt: on
_SHUFFLES = ("flip", "roll", "rot90", "tril", "triu", "pixel_shuffle", "channel_shuffle", "col2im", "im2col")
_TRANSFERS = ("memcpy_h2d", "memcpy_d2h", "memcpy_p2p")
NAMES = _COPIES + _JOINS + _FILLS + _TRANSFERS

# A copy below this many bytes from pageable memory goes inline with the command (CUDA driver API, 'API synchronization
# behavior': transfers of 64 KB or less), so it is as fast as a pinned one.
INLINE_BYTES = 64 << 10


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    if name in _TRANSFERS:
        return (_transfer(call, name),)
    if name in _FILLS:
        targets = written(call)
        moved = sum(map(nbytes, targets))
        return (stream(FILL_FAMILY, ("zero_",), targets[0].dtype if targets else "float32", moved),)
    return _join(call) if name in _JOINS else _copy(call, name)


def _copy(call: OpCall, name: str) -> tuple[Work, ...]:
    targets = written(call)
    sources = [
        t
        for key, value in call.args
        if key not in call.mutated and key != "out"
        for t in inputs(OpCall("", args=((key, value),)))
    ]
    if not targets:
        return ()
    if not sources:
        sources = [targets[0]]
    host = [t for t in (*sources, *targets) if t.device == "cpu"]
    if host:
        kind = "memcpy_h2d" if sources[0].device == "cpu" else "memcpy_d2h"
        return (transfer(kind, min(nbytes(sources[0]), nbytes(targets[0])), pinned=bool(flag(call, "pinned", False))),)
    source, target = sources[0], targets[0]
    if name in _SHUFFLES or numel(source) != numel(target):  # padding, repetition, a slice written into zeros
        moved = nbytes(source) + nbytes(target)
        one = items(FAMILY, name, numel(target), moved, op=str(item_bytes(target.dtype)), like="offsets-2d-1")
        return (one,) * _num_passes(call, name)
    work = pointwise(FAMILY, "clone", [source], [target])
    if work.curves[0].startswith(("stream/", "items/cast/")) and source.dtype != target.dtype:
        return (stream(FAMILY, (f"{source.dtype}-{target.dtype}", "bfloat16-float32"), target.dtype, work.bytes),)
    if work.curves[0].startswith("stream/"):
        return (stream(FAMILY, (name, "clone"), target.dtype, work.bytes),)
    return (work,)


def _num_passes(call: OpCall, name: str) -> int:
    """roll takes a kernel for each dimension (roll_common of native/TensorTransformations.h)."""
    dims = call.arg("dims") if name == "roll" else None
    return max(len(dims), 1) if isinstance(dims, tuple) else 1


def _join(call: OpCall) -> tuple[Work, ...]:
    """Contiguous parts (or all in channels-last) are copied 16 bytes at a time, views element by element; up to 64 parts
    fit one kernel."""
    targets = written(call)
    parts = [t for t in read(call) if numel(t)]
    moved = sum(map(nbytes, parts)) + sum(map(nbytes, targets))
    kernels = max(-(-max(len(parts), len(targets)) // 64), 1)
    if not targets:
        return ()
    if all(map(is_contiguous, parts)) or all(map(is_channels_last, (*parts, *targets))):
        return (stream(FAMILY, (f"cat{min(kernels, 2)}", "clone"), targets[0].dtype, moved, num_kernels=kernels),)
    return (
        items(
            FAMILY, "cat", sum(map(numel, targets)), moved, num_kernels=kernels, op=str(item_bytes(targets[0].dtype))
        ),
    )


def _transfer(call: OpCall, name: str) -> Work:
    tensor = first_tensor(call) or next(iter(written(call)), None)
    size = nbytes(tensor) if tensor is not None else int(call.arg("bytes", 0) or 0)  # type: ignore[arg-type]
    pinned = call.arg("pinned", flag(call, "pinned", True))
    return transfer(name, size, pinned=bool(pinned))


def transfer(kind: str, num_bytes: int, *, pinned: bool) -> Work:
    """A copy over PCIe, or between GPUs; the pricer knows the rates ('memcpy_h2d/pinned', 'memcpy_d2h/pageable')."""
    memory = "pinned" if pinned or (kind == "memcpy_h2d" and num_bytes <= INLINE_BYTES) else "pageable"
    return Work(family=TRANSFER_FAMILY, curves=(f"{kind}/{memory}",), at=(max(num_bytes, 1),), bytes=num_bytes)
