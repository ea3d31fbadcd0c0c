"""Gloo on CUDA tensors: copied to the host, communicated there, and copied back (as ProcessGroupGloo does)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from phantora.intercept import contents as known_contents
from phantora.intercept.distributed import host_collectives
from phantora.intercept.distributed.kernels import Kernel


def kernel(name: str) -> Kernel:
    """The host kernel of a c10d operator for CUDA tensors; its first argument holds what is written."""
    host_kernel = host_collectives.kernel.kernels[name]

    def staged(written: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = list(_tensors(written))
        inputs = tensors + list(_tensors(list(args)))
        are_known = all(
            known_contents.known(tensor) is not None for tensor in inputs if known_contents.is_small(tensor)
        )
        copies = _to_host(written)
        result = host_kernel(copies, *(_to_host(arg) for arg in args), **kwargs)
        boxed = result[-1] if isinstance(result, tuple) else result
        _wait(boxed)
        if name != "send":
            _copy_back(tensors, list(_tensors(copies)), are_known)
        return (written, boxed) if isinstance(result, tuple) else boxed

    return staged


def _wait(boxed: Any) -> None:
    from torch._C import _distributed_c10d as _c10d

    if boxed is not None:
        _c10d.Work.unbox(boxed).wait()  # type: ignore[attr-defined]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _to_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, (list, tuple)):
        return [_to_host(item) for item in value]
    return value


def _copy_back(tensors: list[Tensor], copies: list[Tensor], are_known: bool) -> None:
    for tensor, copy in zip(tensors, copies):
        tensor.copy_(copy)
        if not are_known:  # the host computed with stand-ins
            known_contents.forget(tensor)
