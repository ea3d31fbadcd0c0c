"""What a family says about one call: where it stands among the measured points, and how much it does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.roof import ITEM_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of device work, priced as model(curve, at) x exp(residual measured near `at`) x scale.

    curves: curves of the table whose residual may be used, the most specific first; the first one names the model
        (the word before the first '/').
    at: position on these curves: positive integers, compared by the ratio of each (for example rows and columns).
    bytes: device memory traffic. scale: a factor that the curve does not know (one of two gradients asked for).
    guessed: no family knows the operator; whatever was measured on these curves was another one.
    """

    family: str
    curves: tuple[str, ...]
    at: tuple[int, ...]
    flops: int = 0
    bytes: int = 0
    num_kernels: int = 1
    scale: float = 1.0
    guessed: bool = False

    @property
    def model(self) -> str:
        return self.curves[0].split("/", 1)[0]


def item_bytes(dtype: str) -> int:
    return ITEM_BYTES.get(dtype, 4)


def numel(tensor: TensorSpec) -> int:
    return math.prod(tensor.shape)


def nbytes(tensor: TensorSpec) -> int:
    """Bytes that reading `tensor` once moves: an expanded dimension (stride 0) is in memory once."""
    if len(tensor.stride) != len(tensor.shape):  # a sparse layout has no strides: counted as if it were dense
        return numel(tensor) * item_bytes(tensor.dtype)
    count = 1
    for size, stride in zip(tensor.shape, tensor.stride):
        if stride or size == 0:
            count *= size
    return count * item_bytes(tensor.dtype)


def is_contiguous(tensor: TensorSpec) -> bool:
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def dense(shape: tuple[int, ...], dtype: str, order: tuple[int, ...] | None = None) -> TensorSpec:
    """A dense tensor; `order` lists its dimensions from the slowest to the fastest."""
    stride, expected = [0] * len(shape), 1
    for dim in reversed(order or tuple(range(len(shape)))):
        stride[dim] = expected
        expected *= shape[dim]
    return TensorSpec(tuple(shape), tuple(stride), dtype)


def is_dense(tensor: TensorSpec) -> bool:
    """Its elements fill one block of memory in some order (contiguous, channels_last, or a transposed view)."""
    expected = 1
    for stride, size in sorted((st, sz) for st, sz in zip(tensor.stride, tensor.shape) if sz != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def is_channels_last(tensor: TensorSpec) -> bool:
    if len(tensor.shape) not in (4, 5) or is_contiguous(tensor):
        return False
    return tensor.stride[1] == 1 and is_dense(tensor)


def tensors_in(value: object) -> Iterator[TensorSpec]:
    """All tensors in an argument: itself, or the members of a (nested) list."""
    if isinstance(value, TensorSpec):
        yield value
    elif isinstance(value, tuple):
        for member in value:
            yield from tensors_in(member)


def inputs(call: OpCall) -> list[TensorSpec]:
    return [tensor for _, value in call.args for tensor in tensors_in(value)]


def first_tensor(call: OpCall, *names: str) -> TensorSpec | None:
    """The first of the named arguments that is a tensor; without names, the first tensor argument."""
    if not names:
        return next(iter(inputs(call)), None)
    for name in names:
        value = call.arg(name)
        if isinstance(value, TensorSpec):
            return value
    return None


def written(call: OpCall) -> list[TensorSpec]:
    """What the call writes: its outputs, or, when it returns none, the arguments it mutates."""
    if call.outputs:
        return list(call.outputs)
    return [tensor for name, value in call.args if name in call.mutated for tensor in tensors_in(value)]


def read(call: OpCall) -> list[TensorSpec]:
    """What the call reads: its tensor arguments without those given only to be written (out=)."""
    return [tensor for name, value in call.args if not _only_written(name) for tensor in tensors_in(value)]


def _only_written(name: str) -> bool:
    return name == "out" or (name.startswith("out") and name[3:].isdigit())


def traffic(call: OpCall) -> int:
    """Bytes of everything read once and everything written once."""
    return sum(map(nbytes, read(call))) + sum(map(nbytes, written(call)))


def flag(call: OpCall, name: str, default: object = None) -> object:
    for key, value in call.flags:
        if key == name:
            return value
    return default


def base_name(name: str) -> str:
    """'aten::add_' -> 'add_'; names outside aten keep their namespace."""
    return name[6:] if name.startswith("aten::") else name


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def ints(value: object, count: int, default: int) -> tuple[int, ...]:
    """A stride/padding-like argument as `count` integers (a single one is repeated, a missing one is `default`)."""
    if isinstance(value, int):
        return (value,) * count
    if isinstance(value, tuple) and value:
        numbers = tuple(int(v) for v in value)  # type: ignore[arg-type]
        return numbers if len(numbers) == count else numbers * count if len(numbers) == 1 else numbers[:count]
    return (default,) * count
