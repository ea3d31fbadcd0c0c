"""Pointwise operators: one kernel that TensorIterator builds.

Which kernel it builds decides the time (ATen/native/cuda/Loops.cuh, CUDALoops.cuh): a vectorised one when all operands
lie in memory alike, one with an offset calculator when some are broadcast, permuted or sliced, one that casts while
loading when dtypes differ.
"""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items, stream
from phantora.compute.work import Work, base_name, is_dense, nbytes, numel, read, written

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


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    targets = written(call)
    sources = [t for t in read(call) if t.device == "cuda" and t.shape]
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
    if kind != "vector":
        return items(family, kind, count, moved, flops=count)
    dtype = widest.dtype if widest.dtype != "bool" else shape_of.dtype
    return stream(family, _curves(name, len(sources)), dtype, moved, flops=count)


def _curves(name: str, num_sources: int) -> tuple[str, ...]:
    """The measured functor that `name` resembles; one with a scalar operand streams as mul_scalar does."""
    plain = name[:-1] if name.endswith("_") and name not in _LIKE else name
    if plain == "pow":
        return ("pow" if num_sources < 2 else "add",)
    if plain in ("add", "mul"):
        measured = name if name == "add_" else plain
        return (measured if num_sources >= 2 else "mul_scalar",)
    default = "silu_backward" if plain.endswith("_backward") else "add" if num_sources >= 2 else "mul_scalar"
    return (_LIKE.get(plain, default),)


def _kernel(sources: list[TensorSpec], targets: list[TensorSpec], out: TensorSpec) -> str:
    operands = [t for t in sources if numel(t) > 1] + targets
    if not all(_same_layout(t, out) for t in operands) or not is_dense(out):
        return "transposed" if any(_is_crossed(t, out) for t in operands) else "offsets"
    kinds = {t.dtype for t in sources if t.dtype != "bool" and t.shape}
    kinds |= {t.dtype for t in targets if t.dtype not in ("bool", "uint8", "int64") or not kinds}
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
