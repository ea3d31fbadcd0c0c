"""Pointwise operators: one kernel that TensorIterator builds.

Which kernel it builds decides the time (ATen/native/cuda/Loops.cuh, CUDALoops.cuh): a vectorised one when all operands
lie in memory alike, one with an offset calculator when some are broadcast, permuted or sliced, one that casts while
loading when dtypes differ.

An offset calculator divides an element's index once for each dimension that is left when neighbours that every
operand steps through alike are merged (TensorIterator's coalescing), and multiplies and loads for each operand. On
the H200 the time of an element (16-bit, large tensors) is 2.46, 2.49, 2.8 ps for copies of 2, 3, 4 such dimensions,
2.5, 2.9, 3.1 for two operands, whether these are broadcast, sliced or transposed heads; with a cast 4.5. So
dimensions and operands are the kind, what the operands look like only its refinement.
"""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items, stream
from phantora.compute.work import Work, base_name, is_dense, item_bytes, nbytes, numel, read, written

FAMILY = "elementwise"

# Measured functors whose arithmetic resembles that of others; the rest is as cheap as a multiplication.
# fmt: off
_LIKE: dict[str, str] = {
    "gelu": "gelu", "erf": "gelu", "erfc": "gelu", "erfinv": "gelu", "mish": "gelu", "lgamma": "gelu",
    "digamma": "gelu", "silu": "silu", "sigmoid": "silu", "logit": "silu", "softplus": "silu", "hardswish": "silu",
    "log_sigmoid_forward": "silu", "tanh": "tanh", "elu": "tanh", "celu": "tanh", "exp": "tanh", "expm1": "tanh",
    "sin": "tanh", "cos": "tanh", "tan": "tanh", "log": "tanh", "log1p": "tanh", "log2": "tanh", "atan": "tanh",
    "asin": "tanh", "acos": "tanh", "sinh": "tanh", "gelu_backward": "gelu_backward", "mish_backward": "gelu_backward",
    "silu_backward": "silu_backward", "native_dropout": "dropout", "_fused_dropout": "dropout", "relu": "relu",
    "clamp_min": "relu", "clamp": "relu", "hardtanh": "relu", "leaky_relu": "relu", "threshold": "relu",
}
# fmt: on


NAMES = frozenset(_LIKE) | frozenset(
    "add sub rsub mul div pow maximum minimum fmax fmin where lt le gt ge eq ne neg abs sign sgn square sqrt rsqrt "
    "reciprocal exp2 log10 floor ceil round trunc frac fmod remainder floor_divide atan2 hypot addcmul addcdiv lerp "
    "clamp_max hardsigmoid relu6 selu prelu isnan isinf isfinite nan_to_num logical_and logical_or logical_xor "
    "logical_not bitwise_and bitwise_or bitwise_xor bitwise_not sigmoid_backward tanh_backward threshold_backward "
    "elu_backward leaky_relu_backward hardswish_backward hardtanh_backward softplus_backward log_sigmoid_backward "
    "native_dropout_backward _prelu_kernel conj_physical real imag polar complex xlogy acosh asinh atanh cosh "
    "_adaptive_avg_pool2d_backward glu".split()
)
_MOST_DIMS, _MOST_OPERANDS = 4, 3  # more were not measured
_WITH_SCALAR = ("add", "sub", "mul", "div", "rsub", "gt", "lt", "ge", "le", "eq", "ne", "where", "remainder")


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    targets = written(call)
    sources = [t for t in read(call) if t.device == "cuda"]
    if not targets:
        return ()
    return (pointwise(FAMILY, name, sources, targets),)


def pointwise(family: str, name: str, sources: list[TensorSpec], targets: list[TensorSpec]) -> Work:
    """One TensorIterator kernel from `sources` to `targets`."""
    shape_of = max(targets, key=numel)
    count = numel(shape_of)
    moved = sum(map(nbytes, sources)) + sum(map(nbytes, targets))
    widest = max(sources, key=numel) if sources else shape_of
    count = max(count, numel(widest)) if name.endswith("_backward") else count
    kind = _kernel(sources, [t for t in targets if numel(t) == numel(shape_of)], shape_of)
    if kind == "vector":
        return stream(family, _curves(name, len(sources)), _dtype(sources, shape_of), moved, flops=count)
    pattern = "-".join(sorted({_pattern(t, shape_of) for t in sources}))
    types = "-".join(sorted({t.dtype for t in sources if t.shape})) if kind.startswith("cast") else ""
    op = types or str(item_bytes(shape_of.dtype))
    if kind in ("offsets", "cast_offsets"):
        rank = min(max(coalesced_rank(shape_of, sources), 1), _MOST_DIMS)
        operands = min(max(len(sources), 1), _MOST_OPERANDS)
        kind, op = f"{kind}-{rank}d-{operands}", f"{op}/{pattern or 'same'}"
    return items(family, kind, count, moved, flops=count, op=op)


def coalesced_rank(out: TensorSpec, sources: list[TensorSpec]) -> int:
    """Dimensions of the loop after neighbours through which all operands step alike are merged."""
    dims = sorted((_steps(i, out, sources), size) for i, size in enumerate(out.shape) if size != 1)
    merged: list[tuple[tuple[int, ...], int]] = []
    for steps, size in dims:
        if merged and all(inner * merged[-1][1] == outer for inner, outer in zip(merged[-1][0], steps)):
            merged[-1] = (merged[-1][0], merged[-1][1] * size)
        else:
            merged.append((steps, size))
    return len(merged)


def _steps(dim: int, out: TensorSpec, sources: list[TensorSpec]) -> tuple[int, ...]:
    """Strides of the output and of each source along a dimension of the output; 0 where a source repeats."""
    steps = [out.stride[dim]]
    for tensor in sources:
        place = dim - len(out.shape) + len(tensor.shape)
        repeats = place < 0 or place >= len(tensor.stride) or tensor.shape[place] == 1
        steps.append(0 if repeats else tensor.stride[place])
    return tuple(steps)


def _dtype(sources: list[TensorSpec], target: TensorSpec) -> str:
    """The widest operand's type: comparisons write bool, masks are read as bool."""
    return max((t.dtype for t in (*sources, target) if numel(t) > 1), key=item_bytes, default=target.dtype)


def _pattern(tensor: TensorSpec, out: TensorSpec) -> str:
    """How an operand lies relative to the output: same, row (repeats slowly), column (repeats fast), view, crossed."""
    if _same_layout(tensor, out):
        return "same"
    if numel(tensor) == 1:
        return "scalar"
    if _is_crossed(tensor, out):
        return "crossed"
    if numel(tensor) < numel(out):
        place = max((i for i, size in enumerate(out.shape) if size > 1 and out.stride[i] == 1), default=-1)
        place += len(tensor.shape) - len(out.shape) if place >= 0 else 0
        return (
            "row" if 0 <= place < len(tensor.shape) and tensor.shape[place] > 1 and tensor.stride[place] else "column"
        )
    return "view"


def _curves(name: str, num_sources: int) -> tuple[str, ...]:
    """The functor itself, then one that it resembles; one with a scalar operand streams as mul_scalar does."""
    plain = name[:-1] if name.endswith("_") and name not in _LIKE else name
    default = "silu_backward" if plain.endswith("_backward") else "add" if num_sources >= 2 else "mul_scalar"
    if plain in _WITH_SCALAR and num_sources < 2:
        return (f"{plain}_scalar", default)
    return (name, plain, _LIKE.get(plain, default))


def _kernel(sources: list[TensorSpec], targets: list[TensorSpec], out: TensorSpec) -> str:
    operands = [t for t in sources if numel(t) > 1 or numel(out) > 1] + targets
    kinds = {t.dtype for t in sources if t.dtype != "bool" and t.shape}
    kinds |= {t.dtype for t in targets if t.dtype not in ("bool", "uint8", "int64") or not kinds}
    if not all(_same_layout(t, out) for t in operands) or not is_dense(out):
        # A scalar on the device is a broadcast operand; a number, or one on the host, is a constant of the kernel.
        offsets = "offsets" if len(kinds) <= 1 else "cast_offsets"
        return "transposed" if any(_is_crossed(t, out) for t in operands) else offsets
    if len(kinds) <= 1:
        return "vector"
    if len(sources) == 1 and sources[0].dtype == "float32" and out.dtype in ("bfloat16", "float16"):
        return "vector"  # the copy kernel from float32 to 16 bits is vectorised (bfloat16_copy_kernel_cuda)
    return "cast" if len(sources) == 1 else "cast_many"


def _same_layout(tensor: TensorSpec, out: TensorSpec) -> bool:
    """Element i of both stands at the same offset (dimensions of size 1 do not matter)."""
    if tensor.shape != out.shape:
        return _squeezed(tensor) == _squeezed(out)
    return tensor.stride == out.stride or _squeezed(tensor) == _squeezed(out)


def _squeezed(tensor: TensorSpec) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride) if size != 1]


def _is_crossed(tensor: TensorSpec, out: TensorSpec) -> bool:
    """Along the fastest dimension of `out`, `tensor` neither repeats nor advances by small steps."""
    fastest = min(
        (i for i, size in enumerate(out.shape) if size > 1), key=lambda i: out.stride[i] or 1 << 60, default=None
    )
    if fastest is None:
        return False
    place = fastest - len(out.shape) + len(tensor.shape)
    return place >= 0 and tensor.shape[place] > 1 and tensor.stride[place] > 4
