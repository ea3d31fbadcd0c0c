"""The words in which the intercepted device describes work and `compute` prices it. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Union

Source = Literal["measured", "interpolated", "roofline"]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape (elements), stride (elements), dtype (torch's name without 'torch.': 'bfloat16'), device ('cuda' | 'cpu')."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str = "cuda"


Value = Union[TensorSpec, int, float, bool, str, None, tuple]


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call of an operator as it reaches the CUDA dispatch key.

    `name` is 'aten::addmm' (no overload), 'memcpy_h2d', 'memcpy_d2h', 'memcpy_d2d', 'memcpy_p2p' (from one
    device to another) or 'ns::custom_op'.
    `args` follow the schema: (name, value) pairs, tensors as TensorSpec, lists as tuples; floats keep no value (0.0)
    because they do not change a price. `mutated` names the arguments written in place (or given as out=).
    `flags` holds global switches that change the kernel, such as ('allow_tf32', True).
    """

    name: str
    overload: str = ""
    args: tuple[tuple[str, Value], ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    mutated: tuple[str, ...] = ()
    flags: tuple[tuple[str, Value], ...] = field(default=())

    def arg(self, name: str, default: Value = None) -> Value:
        """The value of schema argument `name`, or `default` when the call does not carry it."""
        for key, value in self.args:
            if key == name:
                return value
        return default


@dataclass(frozen=True, slots=True)
class Draw:
    """The power of a kernel, and how the clock changes its time.

    memory_w: whatever the clock. core_w: at the full clock. clocked: share of the time that goes with the clock.
    priced_at: the clock, as share of the full one, at which the kernel's price holds.
    """

    memory_w: float
    core_w: float
    clocked: float
    priced_at: float


@dataclass(frozen=True, slots=True)
class Price:
    """What one call costs on the simulated GPU.

    duration_ns: device time (sum of its kernels, which run back to back on one stream). bytes: device memory traffic.
    draw: None when the power of this GPU is not known.
    """

    duration_ns: int
    num_kernels: int
    source: Source
    flops: int
    bytes: int
    family: str
    draw: Draw | None = None
