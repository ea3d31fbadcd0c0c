"""Normalisation: layer_norm, rms_norm, group_norm and batch_norm, forward and backward."""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import rows, stream
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
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
WEIGHTS = (0.7, 1.0, 1.0)

# Passes over the input: forward reads it for the statistics and again for the output; backward needs two operands.
# cuDNN gives a channel to a block. One kernel keeps a small plane in registers and reads each operand once
# ('singleread', planes below 1024). With fewer channels than SMs a block's instructions bind, not memory.
_PASSES = {"forward": 3.0, "backward": 5.4, "backward_small": 4.5, "backward_few": 7.5}
# channels_last kernels of ATen: the statistics pass is the slow one and backward profits more from the cache.
_PASSES_CHANNELS_LAST = {"forward": 6.0, "backward": 4.3}


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
        return (
            stream(
                FAMILY,
                ("silu_backward" if "backward" in name else "mul",),
                source.dtype,
                (3 if "backward" in name else 2) * nbytes(source),
                flops=2 * numel(source),
            ),
        )
    backward = "backward" in name
    channels = source.shape[1] if len(source.shape) > 1 else source.shape[0]
    plane = math.prod(source.shape[2:])
    layout = "nhwc" if is_channels_last(source) else "nchw"
    dtype = "bfloat16" if item_bytes(source.dtype) <= 2 else "float32"
    forward_curves = (f"batch_norm/forward/{dtype}/{layout}", f"batch_norm/forward/bfloat16/{layout}")
    curves = (f"batch_norm/backward/{dtype}/{layout}", *forward_curves) if backward else forward_curves
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
    """Time of batch norm `at` = (batch, channels, plane); in NCHW one block per channel, so few channels idle SMs."""
    _, direction, dtype, layout = curve.split("/")
    batch, channels, plane = at
    size = float(batch * channels * plane * (2 if dtype == "bfloat16" else 4))
    if layout == "nhwc":
        return 3 * LAUNCH_FLOOR_NS + roof.stream_ns(size) * _PASSES_CHANNELS_LAST[direction]
    few = channels < roof.num_sms
    kind = (
        direction
        if direction == "forward"
        else "backward_few"
        if few
        else "backward_small"
        if plane < 1024
        else "backward"
    )
    waves = -(-channels // roof.num_sms)
    occupancy = channels / (waves * roof.num_sms)
    return 2 * LAUNCH_FLOOR_NS + roof.stream_ns(size) * _PASSES[kind] / max(occupancy, 0.05)
