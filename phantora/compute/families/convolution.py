"""Convolutions as implicit products: rows are output pixels, columns output channels, depth the receptive field."""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families import convolution_rates, gemm
from phantora.compute.families.streaming import items, rows
from phantora.compute.roof import Roof
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
# Per doubling of (pixels, columns, channels, area, stride area, alignment of columns, of channels).
WEIGHTS = (0.22, 0.22, 0.36, 0.96, 0.36, 0.96, 0.6)
_MOST_ALIGNED = 64  # channels: kernels of the tensor cores want multiples of 8 to 64


def describe(call: OpCall) -> tuple[Work, ...]:
    backward = base_name(call.name) in _BACKWARD
    source, weight = first_tensor(call, "input", "self"), first_tensor(call, "weight")
    output = first_tensor(call, "grad_output", "grad") if backward else next(iter(written(call)), None)
    if source is None or weight is None or output is None or len(weight.shape) < 3:
        return ()
    groups = max(int(call.arg("groups", 1) or 1), 1)  # type: ignore[arg-type]
    at = _position(call, source, weight, output, groups)
    kind = _kind(call, weight, groups, at)
    directions, extra = _gradients(call, output) if backward else (("forward",), _bias(call, output))
    stem = _layout(source, weight), _compute_dtype(call, source)
    flops = 2 * at[0] * at[1] * at[2] * at[3]
    moved = (sum(map(nbytes, read(call))) + sum(map(nbytes, written(call)))) // max(len(directions), 1)
    return (
        *(
            Work(
                family=FAMILY,
                curves=_curves(direction, kind, *stem),
                at=at,
                flops=flops,
                bytes=moved,
                num_kernels=_num_kernels(direction, kind, *stem),
            )
            for direction in directions
        ),
        *extra,
    )


def _kind(call: OpCall, weight: TensorSpec, groups: int, at: tuple[int, ...]) -> str:
    """What has kernels of its own: few channels, one pixel, groups, the transposed direction."""
    if groups > 1:
        return "depthwise" if weight.shape[1] == 1 else "grouped"
    if call.arg("transposed", False) is True or "transpose" in call.name:
        return "transposed"
    if min(weight.shape[0], weight.shape[1]) < 8:
        return "thin" if weight.shape[1] < 8 else "narrow"
    return "point" if at[3] * at[4] == 1 else "dense"


def _position(call: OpCall, source: TensorSpec, weight: TensorSpec, output: TensorSpec, groups: int) -> tuple[int, ...]:
    """(output pixels x groups, output channels of a group, input channels of a group, area, input pixels per output
    pixel, alignment of the output channels, of the input channels)."""
    transposed = call.arg("transposed", False) is True or "transpose" in call.name
    if transposed:
        source, output = output, source
    pixels = numel(output) // max(output.shape[1], 1)
    area = math.prod(weight.shape[2:])
    stride = max(round(numel(source) / source.shape[1] / max(pixels, 1)), 1)
    columns, channels = max(weight.shape[0] // groups, 1), max(weight.shape[1], 1)
    return max(pixels * groups, 1), columns, channels, area, stride, _aligned(columns), _aligned(channels)


def _aligned(channels: int) -> int:
    """The greatest power of two, up to 64, that divides a number of channels."""
    return math.gcd(channels, _MOST_ALIGNED)


def _layout(source: TensorSpec, weight: TensorSpec) -> str:
    """cuDNN is given NHWC when either operand is channels_last (ATen/native/ConvUtils.h)."""
    return "nhwc" if is_channels_last(source) or is_channels_last(weight) else "nchw"


def _curves(direction: str, kind: str, layout: str, dtype: str) -> tuple[str, ...]:
    other = "nchw" if layout == "nhwc" else "nhwc"
    like = {"tf32": ("tf32", "bfloat16"), "float16": ("bfloat16",)}.get(dtype, (dtype, "tf32"))
    names = [f"conv/{direction}/{lay}/{kind}/{d}" for d in like for lay in (layout, other)]
    return tuple(dict.fromkeys([names[0], *names]))


def _compute_dtype(call: OpCall, source: TensorSpec) -> str:
    """cuDNN may use TF32 for float32 unless torch.backends.cudnn.allow_tf32 is off (on by default)."""
    if source.dtype == "float32":
        allowed = call.arg("allow_tf32", flag(call, "cudnn_allow_tf32", True))
        return "tf32" if allowed else "float32"
    return source.dtype if source.dtype in ("float16", "bfloat16", "float64") else "bfloat16"


def _gradients(call: OpCall, output: TensorSpec) -> tuple[tuple[str, ...], tuple[Work, ...]]:
    """(products asked for by output_mask, the bias's sum)."""
    mask = call.arg("output_mask", (True, True, False))
    wanted = tuple(bool(m) for m in mask) if isinstance(mask, tuple) else (True, True, False)
    bias = ()
    if len(wanted) > 2 and wanted[2]:
        channels = output.shape[1]
        bias = (rows(FAMILY, ("mean_dim",), output.dtype, channels, max(numel(output) // channels, 1)),)
    return tuple(d for d, asked in zip(("dgrad", "wgrad"), wanted) if asked), bias


def _bias(call: OpCall, output: TensorSpec) -> tuple[Work, ...]:
    """aten::convolution adds a bias in a kernel of its own (ATen/native/Convolution.cpp: output.add_(reshape_bias))."""
    if not isinstance(call.arg("bias"), TensorSpec):
        return ()
    return (items(FAMILY, "offsets-2d-2", numel(output), 2 * nbytes(output)),)


def _num_kernels(direction: str, kind: str, layout: str, dtype: str) -> int:
    """Profiled: conversions around NCHW products, a second kernel that adds up split weight gradients."""
    if kind == "depthwise":
        return 1
    return {"forward": 1, "dgrad": 1, "wgrad": 2}[direction] + (1 if layout == "nchw" and dtype != "tf32" else 0)


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a convolution `at` a position of `_position`."""
    _, direction, layout, kind, dtype = curve.split("/")
    fixed_ns, shared, passes, weight_passes, per_tap = convolution_rates.rates(direction, layout, kind, dtype)
    _, compute, moved, weights, taps = features(direction, dtype, at, roof)
    return fixed_ns + shared * compute + passes * moved + weight_passes * weights + per_tap * taps


def product_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """The implicit product and the images once through memory, without what was fitted."""
    _, direction, _, _, dtype = curve.split("/")
    _, compute, moved, *_ = features(direction, dtype, at, roof)
    return compute + moved


def features(direction: str, dtype: str, at: tuple[int, ...], roof: Roof) -> tuple[float, float, float, float, float]:
    """(1, product on the tensor cores, images once through memory, weights once, output taps at 1e12/s), in ns."""
    pixels, columns, channels, area, stride, *_ = at
    depth = channels * area
    size = 4 if dtype in ("tf32", "float32") else 8 if dtype == "float64" else 2
    sides = {
        "forward": (pixels, columns, depth),
        "dgrad": (pixels * stride, channels, max(columns * area // stride, 1)),
        "wgrad": (columns, depth, pixels),
    }[direction]
    compute = gemm.compute_ns((1, *sides), roof.flops_per_ns(dtype), roof)
    moved = roof.stream_ns(pixels * (columns + channels * stride) * size)
    weights = roof.stream_ns(columns * depth * size)
    return 1.0, compute, moved, weights, roof.items_ns(pixels * columns * area, 1e12)
