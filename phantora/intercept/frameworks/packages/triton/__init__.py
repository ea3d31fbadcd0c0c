"""Stand-in for Triton 3: kernels can be declared and launched; they are priced, not run
(phantora.intercept.frameworks)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phantora.intercept.frameworks.triton_launches import KernelLauncher as JITFunction
from phantora.intercept.frameworks.triton_launches import jit, let_torch_decide_first, tuned

let_torch_decide_first()

from triton import language, runtime, testing  # noqa: E402

__version__ = "3.5.0"
__all__ = [
    "Config",
    "JITFunction",
    "autotune",
    "cdiv",
    "heuristics",
    "jit",
    "language",
    "next_power_of_2",
    "runtime",
    "testing",
]
autotune = heuristics = tuned


@dataclass
class Config:
    """One choice of an autotuned kernel."""

    kwargs: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None
    pre_hook: Any = None


def cdiv(x: int, y: int) -> int:
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 0 else 0


def set_allocator(allocator: Any) -> None:
    """Scratch memory of descriptors made on the device: not modelled."""
