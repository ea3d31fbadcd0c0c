"""Global switches that change which kernel runs: TF32, cuDNN's search, determinism. They are part of a signature."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

native: Any = sys.modules["phantora_native"]

Flags = tuple[tuple[str, bool], ...]

# Operators that end in cuBLAS or cuBLASLt (aten/src/ATen/native/cuda/Blas.cpp and its callers).
GEMMS = frozenset(
    """mm mm.out addmm addmm_ addmm.out _addmm_activation _addmm_activation.out bmm bmm.out baddbmm baddbmm_ baddbmm.out
    addmv addmv_ addmv.out addbmm addbmm_ addbmm.out mv dot vdot addr mm.dtype addmm.dtype bmm.dtype baddbmm.dtype
    mm.dtype_out addmm.dtype_out bmm.dtype_out baddbmm.dtype_out linear_backward""".split()
)
CONVOLUTIONS = frozenset(
    """convolution convolution_backward cudnn_convolution cudnn_convolution_transpose cudnn_convolution_relu
    cudnn_convolution_add_relu _conv_depthwise2d conv_depthwise3d slow_conv_transpose2d slow_conv_transpose3d
    slow_conv_dilated2d slow_conv_dilated3d _cudnn_rnn _cudnn_rnn_backward""".split()
)

_SETTERS = """_set_cublas_allow_tf32 _set_float32_matmul_precision _set_cudnn_allow_tf32 _set_cudnn_benchmark
    _set_cudnn_deterministic _set_deterministic_algorithms _set_fp32_precision_setter""".split()


def flags_of(name: str) -> Flags:
    """The switches, with their values now, that matter to operator `name` ('addmm', 'add.Tensor')."""
    flags: list[tuple[str, bool]] = []
    if name in GEMMS:
        flags.append(("allow_tf32", _allows_tf32(torch._C._get_cublas_allow_tf32, "cuda", "matmul")))
    elif name in CONVOLUTIONS:
        flags.append(("cudnn_allow_tf32", _allows_tf32(torch._C._get_cudnn_allow_tf32, "cuda", "conv")))
        flags.append(("cudnn_benchmark", torch._C._get_cudnn_benchmark()))
        if torch._C._get_cudnn_deterministic():
            flags.append(("cudnn_deterministic", True))
    if torch._C._get_deterministic_algorithms():
        flags.append(("deterministic", True))
    return tuple(flags)


def _allows_tf32(getter: Callable[[], bool], backend: str, operation: str) -> bool:
    try:
        return getter()
    except RuntimeError:  # the script uses the newer fp32_precision switches, which forbid this getter
        return torch._C._get_fp32_precision_getter(backend, operation) == "tf32"


class Context:
    """The switches as one number, which is part of every plan and signature; kept up to date by `install`."""

    def __init__(self) -> None:
        self.number = 0

    def refresh(self) -> None:
        states = (
            _allows_tf32(torch._C._get_cublas_allow_tf32, "cuda", "matmul"),
            _allows_tf32(torch._C._get_cudnn_allow_tf32, "cuda", "conv"),
            torch._C._get_cudnn_benchmark(),
            torch._C._get_cudnn_deterministic(),
            torch._C._get_deterministic_algorithms(),
        )
        self.number = sum(1 << bit for bit, state in enumerate(states) if state)
        native.set_plan_context(self.number)

    def install(self) -> None:
        """Follow every later change of a switch."""
        properties = [p for p in vars(type(torch.backends.cudnn)).values() if hasattr(p, "setter")]
        for name in _SETTERS:
            setter = getattr(torch._C, name, None)
            if setter is None:
                continue
            watched = _watched(setter, self.refresh)
            setattr(torch._C, name, watched)
            for bound in properties:  # torch.backends.cudnn took the setters when it was imported
                if bound.setter is setter:
                    bound.setter = watched
        self.refresh()


context = Context()


def _watched(setter: Callable[..., Any], changed: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(setter)
    def set_and_tell(*args: Any, **kwargs: Any) -> Any:
        result = setter(*args, **kwargs)
        changed()
        return result

    return set_and_tell
