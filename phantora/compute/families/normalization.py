"""Normalisation: layer_norm, rms_norm, group_norm and batch_norm, forward and backward."""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items, rows, stream
from phantora.compute.roof import Roof
from phantora.compute.work import Work, base_name, first_tensor, is_channels_last, item_bytes, nbytes, numel

FAMILY = "normalization"

# fmt: off
_LAYER = {
    "native_layer_norm": "layer_norm", "layer_norm": "layer_norm", "native_layer_norm_backward": "layer_norm_backward",
    "_fused_rms_norm": "rms_norm", "rms_norm": "rms_norm", "_fused_rms_norm_backward": "rms_norm_backward",
}
# fmt: on
_GROUP = ("native_group_norm", "native_group_norm_backward", "group_norm")
# fmt: off
_BATCH = (
    "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "_batch_norm_with_update_functional",
    "_batch_norm_no_update", "batch_norm", "native_batch_norm_backward", "cudnn_batch_norm_backward",
    "batch_norm_backward",
    "instance_norm", "batch_norm_stats", "batch_norm_gather_stats_with_counts", "batch_norm_elemt",
    "batch_norm_backward_reduce", "batch_norm_backward_elemt", "batch_norm_update_stats",
)
# fmt: on
NAMES = tuple(_LAYER) + _GROUP + _BATCH
WEIGHTS = (0.2, 0.3, 0.3)

# (direction, layout, whose kernels) -> (fixed ns, ns per element that one SM walks, times that the input is moved).
_BATCH_RATES = {
    ("forward", "nchw", "cudnn"): (4000.0, 0.50, 0.3),
    ("forward", "nchw", "native"): (6000.0, 0.78, 0.3),
    ("backward", "nchw", "cudnn"): (4000.0, 0.95, 0.3),
    ("backward", "nchw", "native"): (6000.0, 1.05, 0.3),
    ("forward", "nhwc", "cudnn"): (5600.0, 0.0, 3.9),
    ("forward", "nhwc", "native"): (8500.0, 0.05, 8.0),
    ("backward", "nhwc", "cudnn"): (2500.0, 0.02, 5.0),
    ("backward", "nhwc", "native"): (6500.0, 0.06, 7.7),
}


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    source = first_tensor(call, "input", "self") or first_tensor(call)
    if source is None or not source.shape:
        return ()
    if name in _LAYER:
        return _layer(call, _LAYER[name], source)
    if name in _GROUP:
        return _group(call, name, source)
    return _batch(call, name, source)


def _layer(call: OpCall, op: str, source: TensorSpec) -> tuple[Work, ...]:
    shape = call.arg("normalized_shape")
    columns = math.prod(shape) if isinstance(shape, tuple) else source.shape[-1]  # type: ignore[arg-type]
    backward = op.endswith("_backward")
    like = (op, "layer_norm_backward") if op == "rms_norm_backward" else (op,)
    if columns % 4:  # rows that cannot be read in vectors (layer_norm_kernel.cu) take kernels of their own
        like = tuple(f"{name}-odd" for name in like)
    count = numel(source) // max(columns, 1)
    return (rows(FAMILY, like, source.dtype, count, columns, num_kernels=2 if backward else 1),)


def _group(call: OpCall, name: str, source: TensorSpec) -> tuple[Work, ...]:
    """Statistics per group, then a pointwise pass; backward adds per-channel sums."""
    groups = call.arg("group", 1) or call.arg("num_groups", 1)
    count = source.shape[0] * max(int(groups), 1)  # type: ignore[arg-type]
    columns = numel(source) // max(count, 1)
    op = "group_norm_backward" if name.endswith("backward") else "group_norm"
    like = (op, "layer_norm_backward" if name.endswith("backward") else "layer_norm")
    return (rows(FAMILY, like, source.dtype, count, columns, num_kernels=4 if name.endswith("backward") else 3),)


def _batch(call: OpCall, name: str, source: TensorSpec) -> tuple[Work, ...]:
    if name in ("batch_norm_gather_stats_with_counts", "batch_norm_update_stats"):
        return (stream(FAMILY, ("clone",), source.dtype, 4 * nbytes(source)),)
    if name in ("batch_norm_elemt", "batch_norm_backward_elemt") or _frozen(call, name):
        kind = "batch_norm_backward_elemt" if "backward" in name else "batch_norm_elemt"
        layout = "nhwc" if is_channels_last(source) else "nchw"
        moved = (3 if "backward" in name else 2) * nbytes(source)
        size = str(item_bytes(source.dtype))
        return (items(FAMILY, f"{kind}-{layout}", numel(source), moved, flops=2 * numel(source), op=size),)
    backward = "backward" in name
    channels = source.shape[1] if len(source.shape) > 1 else source.shape[0]
    plane = math.prod(source.shape[2:])
    layout = "nhwc" if is_channels_last(source) else "nchw"
    direction = "backward" if backward else "forward"
    # torch gives bfloat16 to its own kernels, everything else to cuDNN (ATen/native/Normalization.cpp).
    maker = "native" if source.dtype == "bfloat16" else "cudnn"
    curves = tuple(f"batch_norm/{direction}/{layout}/{m}/{item_bytes(source.dtype)}" for m in (maker, "cudnn"))
    half = 0.5 if name in ("batch_norm_stats", "batch_norm_backward_reduce") else 1.0
    kernels = 1 if name.startswith("cudnn") else 3 if layout == "nchw" else 4 if not backward else 2
    return (
        Work(
            family=FAMILY,
            curves=curves,
            at=(source.shape[0], channels, max(plane, 1)),
            flops=8 * numel(source),
            bytes=int((5 if backward else 3) * nbytes(source) * half),
            num_kernels=kernels,
            scale=half,
        ),
    )


def _frozen(call: OpCall, name: str) -> bool:
    """Evaluation mode: running statistics are used, nothing is reduced."""
    training = call.arg("training", call.arg("train", True))
    return "no_training" in name or "no_update" in name or ("backward" not in name and training is False)


def batch_norm_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of batch norm `at` = (batch, channels, plane). In NCHW a block walks its channel."""
    _, direction, layout, maker, item = curve.split("/")
    batch, channels, plane = at
    fixed_ns, walked_ns, passes = _BATCH_RATES[direction, layout, maker]
    size = float(batch * channels * plane * int(item))
    if maker == "native" and layout == "nchw":
        plane = max(plane, 128)  # the threads of a block lie along the plane
    walked = -(-channels // roof.num_sms) * batch * plane
    return fixed_ns + walked_ns * walked + passes * roof.stream_ns(size)
