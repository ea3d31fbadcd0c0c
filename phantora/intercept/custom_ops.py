"""Operators from outside torch: torch.library.custom_op, operators of C++ extensions, foreign kernel launches.

A custom operator declared for 'cuda' would launch kernels that do not exist here; its fake implementation, run on the
simulated tensors themselves, allocates the right outputs, and one launch named after the operator stands for its work.
Operators of extensions that have a schema but no CUDA kernel get a generic kernel on their first call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.generic_kernel import Kernel
from phantora.intercept.launching import launch
from phantora.intercept.schemas import tensors_in


def install(libraries: list[Any]) -> None:
    """Follow torch.library.custom_op, and supply a fallback for every other operator without CUDA kernel."""
    _follow_custom_ops()
    library = torch.library.Library("_", "IMPL")
    library.fallback(_Fallback(), "CUDA")
    libraries.append(library)


class _Fallback:
    """Kernels made on the first call of an operator that has none for CUDA."""

    def __init__(self) -> None:
        self.kernels: dict[Any, Kernel] = {}

    def __call__(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = self.kernels.get(op)
        if kernel is None:
            kernel = self.kernels[op] = Kernel(op)
        return kernel(*args, **kwargs)


def _follow_custom_ops() -> None:
    from torch._library.custom_ops import CustomOpDef

    original = CustomOpDef.register_kernel

    def register_kernel(self: Any, device_types: Any, fn: Callable[..., Any] | None = None, /) -> Any:
        def register(body: Callable[..., Any]) -> Any:
            return original(self, device_types, _simulated(self, body) if _names_cuda(device_types) else body)

        return register if fn is None else register(fn)

    CustomOpDef.register_kernel = register_kernel  # type: ignore[method-assign]


def _names_cuda(device_types: str | Sequence[str] | None) -> bool:
    if device_types is None:  # written in torch operators, which are simulated one by one
        return False
    return device_types == "cuda" or "cuda" in device_types


def _simulated(definition: Any, body: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        on_gpu = [t for t in tensors_in(args, kwargs) if t.is_cuda]
        fake = definition._abstract_fn
        if not on_gpu or fake is None:
            return body(*args, **kwargs)
        results = fake(*args, **kwargs)
        launch_foreign(definition._qualname, on_gpu, tensors_in([results], {}))
        return results

    return run


def launch_foreign(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    """One launch for work that somebody else's kernel does; `name` is 'namespace::operator'."""
    args = tuple((f"arg{i}", tensor) for i, tensor in enumerate(inputs))
    launch(inputs[0].get_device(), name, *args, outputs=tuple(outputs))
