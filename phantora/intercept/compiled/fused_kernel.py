"""A fused kernel at run time: what the wrapper module of a compiled graph calls in place of a Triton launcher."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from phantora.compute.call import OpCall, Value
from phantora.intercept import contents, session
from phantora.intercept.calls import tensor_spec
from phantora.intercept.compiled import accounts

native: Any = sys.modules["phantora_native"]


_share = 1000  # host time of a launch, in thousandths of the class 'kernel'; runner.py


def set_share(thousandths: int) -> int:
    """What launching a fused kernel costs from here on; returns what it cost before."""
    global _share
    previous, _share = _share, thousandths
    return previous


def get_raw_stream(device: int) -> int:
    """What wrappers pass on to kernels; these launch on the current stream anyway."""
    return native.stream(device)


def empty_strided_cuda(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
    """torch._C._dynamo.guards._empty_strided_cuda, which a CPU build has no kernel for."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


class FusedKernel:
    """One kernel of a compiled graph. `description`: codegen.describe."""

    def __init__(self, name: str, description: dict[str, Any]) -> None:
        self.name = name
        self.arguments: tuple[tuple[int, int, int], ...] = description["arguments"]
        self.facts: tuple[tuple[str, Value], ...] = tuple((k, v) for k, v in description.items() if k != "arguments")
        self.written = tuple(i for i, (_, written, _) in enumerate(self.arguments) if written)
        self.signatures: dict[Any, int] = {}

    def run(self, *args: Any, stream: int = 0, **options: Any) -> None:
        """Launch with the arguments of the call: tensors, then symbolic sizes, workspaces and sizes of the iteration
        space."""
        key = tuple([arg for arg in args if not isinstance(arg, Tensor)])
        number = self.signatures.get(key)
        tensors = args[: len(self.arguments)]
        if number is None:
            number = self.signatures[key] = session.register_price(self.call(tensors, args))
        for index in self.written:
            if contents.is_small(tensors[index]):
                contents.forget(tensors[index])
        previous = native.set_cost_share(_share)
        native.launch(number, tensors[0].get_device() if tensors else native.device())
        native.set_cost_share(previous)

    def call(self, tensors: tuple[Any, ...], args: tuple[Any, ...]) -> OpCall:
        """This launch in the words of `compute`: its traffic follows the real sizes of its tensors."""
        moved = 0
        growth = 1.0
        for tensor, (read, written, numel) in zip(tensors, self.arguments):
            ratio = tensor.numel() / numel if numel else 1.0
            moved += round((read + written) * ratio) * tensor.element_size()
            growth = max(growth, ratio) if written else growth
        workspaces = [arg for arg in args[len(tensors) :] if isinstance(arg, Tensor)]
        moved += sum(2 * tensor.numel() * tensor.element_size() for tensor in workspaces)
        inputs = tuple((f"in{i}", tensor_spec(t)) for i, t in enumerate(tensors) if i not in self.written)
        outputs = tuple(tensor_spec(tensors[i]) for i in self.written)
        facts = (*self.facts, ("bytes", moved), ("growth_percent", round(100 * growth)))
        return OpCall(name=f"fused::{self.name}", args=(*inputs, *facts), outputs=outputs)


class ForeignKernel:
    """A Triton kernel of the script's own inside a compiled graph: the bytes of its tensors, as outside of one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, *args: Any, stream: int = 0, **options: Any) -> None:
        from phantora.intercept.custom_ops import launch_foreign

        tensors = [arg for arg in (*args, *options.values()) if isinstance(arg, Tensor) and arg.is_cuda]
        for tensor in tensors:
            if contents.is_small(tensor):
                contents.forget(tensor)
        if tensors:
            launch_foreign(f"triton::{self.name}", tensors, tensors[-1:])


def fused_kernel(name: str, description: dict[str, Any]) -> FusedKernel:
    """Called once per kernel when a wrapper module is loaded, freshly generated or from Inductor's cache."""
    accounts.count_kernel(name)
    return FusedKernel(name, description)
