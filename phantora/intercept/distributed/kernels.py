"""Registering Python kernels of c10d operators, and what they have in common."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.distributed import groups
from phantora.intercept.distributed.groups import Group

Kernel = Callable[..., Any]

_libraries: list[Any] = []  # a library that is collected takes its kernels with it

# Where c10d operators have their process_group argument (torch/csrc/distributed/c10d/Ops.cpp).
_GROUP_POSITION = {
    "broadcast_": 1,
    "allreduce_": 1,
    "allreduce_coalesced_": 1,
    "reduce_": 1,
    "send": 1,
    "recv_": 1,
    "recv_any_source_": 1,
    "barrier": 1,
    "monitored_barrier_": 1,
}


class KernelSet:
    """Kernels of c10d operators at one dispatch key; the names of the functions are those of the operators.

    A kernel gets the `Group` where the operator has its process group.
    """

    def __init__(self, key: str, choose: Callable[[str, Group, Kernel], Kernel]) -> None:
        self._key = key
        self._choose = choose
        self.kernels: dict[str, Kernel] = {}

    def __call__(self, kernel: Kernel) -> Kernel:
        self.kernels[kernel.__name__] = kernel
        return kernel

    def install(self) -> None:
        library = torch.library.Library("c10d", "IMPL")
        _libraries.append(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overriding is the purpose
            for name, kernel in self.kernels.items():
                library.impl(name, self._entry(name, kernel), self._key, allow_override=True)

    def _entry(self, name: str, kernel: Kernel) -> Kernel:
        position = _GROUP_POSITION.get(name, 2)
        choose = self._choose

        @functools.wraps(kernel)
        def entry(*args: Any, **kwargs: Any) -> Any:
            group = groups.of(args[position])
            return choose(name, group, kernel)(*args[:position], group, *args[position + 1 :], **kwargs)

        return entry


def only(tensors: Sequence[Any]) -> Any:
    """The element of a list of one; lists exist for several devices per process, which torch no longer supports."""
    if len(tensors) != 1:
        raise RuntimeError(
            "Expecting one tensor only but got multiple. You are probably using multiple devices under one thread."
        )
    return tensors[0]


def check_contiguous(*tensors: Tensor) -> None:
    """As check_gpu_single_tensor of ProcessGroupNCCL.cpp."""
    for tensor in tensors:
        if not (tensor.is_contiguous() or _is_channels_last(tensor)):
            raise ValueError("Tensors must be contiguous")


def _is_channels_last(tensor: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def have_same_size(tensors: Iterable[Tensor]) -> bool:
    return len({tensor.shape for tensor in tensors}) <= 1


def check_gathered(output: Tensor, input: Tensor, size: int) -> None:
    """As ProcessGroupNCCL::_allgather_base."""
    if input.dtype != output.dtype:
        raise TypeError("output tensor must have the same type as input tensor")
    if input.numel() * size != output.numel():
        raise ValueError("output tensor size must be equal to world_size times input tensor size")


def check_scattered(output: Tensor, input: Tensor, size: int) -> None:
    """As ProcessGroupNCCL::_reduce_scatter_base."""
    if input.dtype != output.dtype:
        raise TypeError("input tensor must be the same type as the output tensor.")
    if input.numel() != output.numel() * size:
        raise ValueError("input tensor must be the same size as output size times world size")


def check_list_on_root(tensors: Sequence[Sequence[Tensor]], is_root: bool, size: int, word: str) -> None:
    """As ProcessGroupNCCL::gather and ::scatter."""
    if not is_root and tensors:
        raise ValueError(f"requires empty {word} on non-root")
    if is_root and (len(tensors) != 1 or len(tensors[0]) != size):
        raise ValueError(f"requires a single-element {word} list containing a list with {size} tensors.")


def split_rows(tensor: Tensor, splits: Sequence[int], size: int) -> list[int]:
    """Bytes for each member of an all-to-all that cuts `tensor` along its first dimension; as checkSplitSizes."""
    if not splits:
        if tensor.shape and tensor.shape[0] % size:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        return [tensor.numel() * tensor.itemsize // size] * size
    if len(splits) != size:
        raise RuntimeError("Number of tensor splits not equal to group size")
    if sum(splits) != tensor.shape[0]:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    row_bytes = tensor.numel() * tensor.itemsize // tensor.shape[0] if tensor.shape[0] else 0
    return [split * row_bytes for split in splits]
