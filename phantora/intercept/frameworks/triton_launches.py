"""Launching a Triton kernel on the simulated device: one launch, priced by the bytes of its tensor arguments.

Nothing is compiled and the grid is not asked: what a kernel computes is not known, so its price is a lower bound
('guessed' in the report). What it writes (stores_of_kernels.py) has no known contents afterwards.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor

from phantora.intercept import contents
from phantora.intercept.frameworks.stores_of_kernels import written_arguments
from phantora.intercept.launching import launch


class KernelLauncher:
    """What @triton.jit, @autotune and @heuristics make of a function; `kernel[grid](...)` launches it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = getattr(function, "fn", function)
        self.__name__ = getattr(self.fn, "__name__", "kernel")
        self.__module__, self.__doc__ = self.fn.__module__, self.fn.__doc__
        self.signature = inspect.signature(self.fn)
        self.arg_names = list(self.signature.parameters)
        self._written: frozenset[str] | None = None

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        if not warmup:
            self._launch(*args, **kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> None:
        """Compiling is not modelled."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")  # Triton's own words

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        named = [*zip(self.arg_names, args), *kwargs.items()]
        tensors = [(name, value) for name, value in named if isinstance(value, Tensor)]
        on_gpu = [tensor for _, tensor in tensors if tensor.is_cuda]
        if not on_gpu:
            raise ValueError(f"Pointer argument of {self.__name__} cannot be accessed from Triton (no tensor on a GPU)")
        if self._written is None:
            self._written = written_arguments(self.fn)
        mutated = tuple(name for name, _ in tensors if name in self._written)
        launch(on_gpu[0].get_device(), f"triton::{self.__name__}", *tensors, mutated=mutated)
        for name, tensor in tensors:
            if name in self._written:
                contents.forget(tensor)


def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
    """@triton.jit, with or without arguments."""
    return KernelLauncher if function is None else KernelLauncher(function)


def tuned(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """@triton.autotune and @triton.heuristics: no configuration is better than another."""
    return lambda kernel: kernel


def let_torch_decide_first() -> None:
    """torch asks once whether Triton is there, and keeps the answer: no (frameworks.HIDDEN_FROM).

    Otherwise it would find the stand-in in sys.modules later, and Inductor would try to compile with it.
    """
    stand_in = sys.modules.pop("triton")  # half imported: it would be found
    try:
        from torch.utils import _triton

        _triton.has_triton_package()
        _triton.has_triton()
        import torch._inductor.runtime.triton_compat  # noqa: F401
    finally:
        sys.modules["triton"] = stand_in
