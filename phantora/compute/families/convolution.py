"""Convolutions as implicit products: rows are output pixels, columns output channels, depth the receptive field."""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families import gemm
from phantora.compute.families.streaming import items, rows
from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work, base_name, first_tensor, flag, is_channels_last, nbytes, numel, read, written

FAMILY = "convolution"
_BACKWARD = (
    "convolution_backward",
    "convolution_backward_overrideable",
    "_slow_conv2d_backward",
    "cudnn_convolution_transpose_backward",
    "miopen_depthwise_convolution_backward",
)
# fmt: off
NAMES = (
    "convolution", "_convolution", "convolution_overrideable", "cudnn_convolution", "cudnn_convolution_transpose",
    "cudnn_convolution_relu", "cudnn_convolution_add_relu", "_slow_conv2d_forward", "slow_conv3d_forward", "conv2d",
    "conv1d",
    "conv3d", "thnn_conv2d", "_conv_depthwise2d", "conv_depthwise3d", "slow_conv_transpose2d", "slow_conv_transpose3d",
    "slow_conv_dilated2d", "slow_conv_dilated3d", *_BACKWARD,
)
# fmt: on
WEIGHTS = (1.0, 1.0, 1.0, 1.0, 1.0)  # per doubling of (pixels, columns, depth, area, stride area)

# Share of the gradient's time that each of (input, weight) takes; with fewer than 8 channels the input's gradient
# wastes most of its tile (ResNet's first layer: the weight alone takes 0.23 to 0.35 of the time of both).
_GRADIENT_SHARE = {"plain": (0.5, 0.5), "odd": (0.7, 0.3)}
# NCHW operands are converted to NHWC and back by cuDNN, at about a third of the streaming rate.
_CONVERSION_PASSES = 3.0


def describe(call: OpCall) -> tuple[Work, ...]:
    backward = base_name(call.name) in _BACKWARD
    source, weight = first_tensor(call, "input", "self"), first_tensor(call, "weight")
    output = first_tensor(call, "grad_output", "grad") if backward else next(iter(written(call)), None)
    if source is None or weight is None or output is None or len(weight.shape) < 3:
        return ()
    groups = max(int(call.arg("groups", 1) or 1), 1)  # type: ignore[arg-type]
    if groups > 1 and weight.shape[1] == 1:
        return _depthwise(call, source, weight, output, backward)
    transposed = call.arg("transposed", False) is True or "transpose" in call.name
    pixels = (numel(source) // source.shape[1]) if transposed else numel(output) // output.shape[1]
    area = math.prod(weight.shape[2:])
    depth, columns = weight.shape[1] * area, weight.shape[0] // groups
    direction, odd = "backward" if backward else "forward", min(weight.shape[0], weight.shape[1]) < 8
    stride = max(round(numel(source) / source.shape[1] / max(numel(output) / output.shape[1], 1)), 1)
    curves = _curves(direction, _compute_dtype(call, source), is_channels_last(source), odd)
    products, share, extra = _gradients(call, output, odd) if backward else (1, 1.0, _bias(call, output))
    flops = 2 * pixels * weight.shape[0] * depth * products
    main = Work(
        family=FAMILY,
        curves=curves,
        at=(pixels * groups, columns, depth, area, stride),
        flops=flops,
        bytes=sum(map(nbytes, read(call))) + sum(map(nbytes, written(call))),
        num_kernels=_num_kernels(is_channels_last(source), products),
        scale=share,
    )
    return (main, *extra) if share else extra


def _curves(direction: str, dtype: str, channels_last: bool, odd: bool) -> tuple[str, ...]:
    layout = "nhwc" if channels_last else "nchw"
    kind = "/odd" if odd else ""
    like = {"tf32": ("tf32", "bfloat16"), "float16": ("bfloat16",)}.get(dtype, (dtype,))
    return tuple(
        f"conv/{direction}/{d}/{lay}{kind}" for d in like for lay in (layout, "nchw" if channels_last else "nhwc")
    )


def _compute_dtype(call: OpCall, source: TensorSpec) -> str:
    """cuDNN may use TF32 for float32 unless torch.backends.cudnn.allow_tf32 is off (on by default)."""
    if source.dtype == "float32":
        allowed = call.arg("allow_tf32", flag(call, "cudnn_allow_tf32", True))
        return "tf32" if allowed else "float32"
    return source.dtype if source.dtype in ("float16", "bfloat16", "float64") else "bfloat16"


def _gradients(call: OpCall, output: TensorSpec, odd: bool) -> tuple[int, float, tuple[Work, ...]]:
    """(products, share of computing both, the bias's sum) by output_mask."""
    mask = call.arg("output_mask", (True, True, False))
    wanted = tuple(bool(m) for m in mask) if isinstance(mask, tuple) else (True, True, False)
    shares = _GRADIENT_SHARE["odd" if odd else "plain"]
    share = sum(s for s, asked in zip(shares, wanted) if asked)
    bias = ()
    if len(wanted) > 2 and wanted[2]:
        channels = output.shape[1]
        bias = (rows(FAMILY, ("mean_dim",), output.dtype, channels, max(numel(output) // channels, 1)),)
    return sum(wanted[:2]), share, bias


def _bias(call: OpCall, output: TensorSpec) -> tuple[Work, ...]:
    """aten::convolution adds a bias in a kernel of its own (ATen/native/Convolution.cpp: output.add_(reshape_bias))."""
    if not isinstance(call.arg("bias"), TensorSpec):
        return ()
    return (items(FAMILY, "offsets", numel(output), 2 * nbytes(output)),)


def _num_kernels(channels_last: bool, products: int) -> int:
    """Profiled: one kernel per product in NHWC, about two conversions more per product in NCHW."""
    return products * (1 if channels_last else 3)


def _depthwise(
    call: OpCall, source: TensorSpec, weight: TensorSpec, output: TensorSpec, backward: bool
) -> tuple[Work, ...]:
    """One filter per channel: no matrix product; each output reads its window through the cache."""
    area = math.prod(weight.shape[2:])
    moved = (nbytes(source) + nbytes(output)) * (2 if backward else 1)
    count = numel(output) * max(area, 1) * (2 if backward else 1)
    return (items(FAMILY, "depthwise", count, moved, num_kernels=2 if backward else 1, flops=2 * count),)


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a convolution `at` = (output pixels, output channels, depth, kernel area, input pixels per output)."""
    parts = curve.split("/")
    direction, dtype, layout = parts[1], parts[2], parts[3]
    pixels, columns, depth, area, stride = at
    size = 4 if dtype in ("tf32", "float32") else 8 if dtype == "float64" else 2
    product = gemm.model_ns(f"gemm/mm/{dtype}", (1, pixels, columns, depth, 1, 16), roof)
    moved = float(pixels * (columns + depth / area * stride) * size)
    converts = layout == "nchw" and area * stride > 1  # a plain 1x1 convolution is a batched product in either layout
    convert = roof.stream_ns(moved * _CONVERSION_PASSES) + 4 * LAUNCH_FLOOR_NS if converts else 0.0
    return (product + convert) * (2.3 if direction == "backward" else 1.0) * 1.25
