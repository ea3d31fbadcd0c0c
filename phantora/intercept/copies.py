"""Copies between host and device, on one device and between devices, and fills.

Mirrors aten/src/ATen/native/cuda/Copy.cu: what is a plain memcpy and what a kernel, which temporaries a copy makes, and
when the host waits for it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents, unknown_values
from phantora.intercept.host_sync import sync_current_stream
from phantora.intercept.launching import launch, signature

native: Any = sys.modules["phantora_native"]

# Unknown data copied to the host becomes stand-ins up to this size; a larger destination keeps what it held.
_FILLED_LIMIT_BYTES = 1 << 20


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """aten::copy_ with at least one CUDA tensor."""
    if self.numel() == 0 or self is src:
        return self
    if self.is_cuda and src.is_cuda:
        _device_to_device(self, src)
    elif self.is_cuda:
        _host_to_device(self, src, non_blocking)
    else:
        _device_to_host(self, src, non_blocking)
    return self


def _is_plain(self: Tensor, src: Tensor) -> bool:
    """Whether bytes can be copied as they lie: same dtype, same bits, same dense layout."""
    return (
        self.dtype == src.dtype
        and self.is_conj() == src.is_conj()
        and self.is_neg() == src.is_neg()
        and self.shape == src.shape
        and (self.is_contiguous() and src.is_contiguous() or self.stride() == src.stride() and _is_dense(self))
    )


def _is_dense(t: Tensor) -> bool:
    return torch.ops.aten.is_non_overlapping_and_dense.default(t)


def _device_to_device(self: Tensor, src: Tensor) -> None:
    if self.get_device() != src.get_device():
        _between_devices(self, src)
        return
    if _is_plain(self, src):
        number = signature("memcpy_d2d", (("self", self), ("src", src)), mutated=("self",))
    else:
        number = signature("aten::copy_", (("self", self), ("src", src), ("non_blocking", False)), mutated=("self",))
    native.launch(number, self.get_device())
    if native.pending_plan():
        native.plan(number, [0], not contents.is_small(self))
    _take_over(self, src)


def _between_devices(self: Tensor, src: Tensor) -> None:
    """The copy runs on the source's stream, between a wait for the destination's stream and one of it."""
    from_device, to_device = src.get_device(), self.get_device()
    if self.dtype != src.dtype or not _is_plain(self, src):
        src = torch.empty_like(self, device=src.device).copy_(src)
    from_stream, to_stream = native.stream(from_device), native.stream(to_device)
    native.wait_event(from_device, from_stream, native.record_event(to_device, to_stream))
    launch(from_device, "memcpy_p2p", ("self", self), ("src", src), mutated=("self",))
    native.wait_event(to_device, to_stream, native.record_event(from_device, from_stream))
    if native.pending_plan():
        native.plan(-1, None, False)
    _take_over(self, src)


def _host_to_device(self: Tensor, src: Tensor, non_blocking: bool) -> None:
    device = self.get_device()
    source = src.to(self.dtype).expand_as(self).contiguous()  # converted by the CPU, as Copy.cu does
    is_pinned = source.is_pinned()
    target = self if self.is_contiguous() else torch.empty_like(self, memory_format=torch.contiguous_format)
    _launch_memcpy("memcpy_h2d", device, target, source, is_pinned, non_blocking)
    if not (non_blocking and is_pinned):
        sync_current_stream(device)
    if target is not self:
        number = signature("aten::copy_", (("self", self), ("src", target), ("non_blocking", False)), mutated=("self",))
        native.launch(number, device)
    contents.write(self, source)


def _device_to_host(self: Tensor, src: Tensor, non_blocking: bool) -> None:
    device = src.get_device()
    source = src
    if self.dtype != src.dtype or not src.is_contiguous():  # converted by the GPU
        source = torch.empty_like(src, dtype=self.dtype, memory_format=torch.contiguous_format).copy_(src)
    is_pinned = self.is_pinned()
    _launch_memcpy("memcpy_d2h", device, self, source, is_pinned, non_blocking)
    if not (non_blocking and is_pinned):
        sync_current_stream(device)
    _give_to_host(self, src)


def _launch_memcpy(name: str, device: int, self: Tensor, src: Tensor, is_pinned: bool, non_blocking: bool) -> None:
    switches = (("pinned", is_pinned), ("non_blocking", bool(non_blocking)))
    launch(device, name, ("self", self), ("src", src), *switches, mutated=("self",))


def _give_to_host(self: Tensor, src: Tensor) -> None:
    value = contents.known(src)
    if value is not None:
        if contents.is_stand_in(src):
            unknown_values.count("aten::copy_ to the host")
        self.copy_(value)
        return
    unknown_values.count("aten::copy_ to the host")
    if self.numel() * self.itemsize <= _FILLED_LIMIT_BYTES:
        self.fill_(unknown_values.element(self.dtype))


def _take_over(self: Tensor, src: Tensor) -> None:
    """The destination's contents become those of the source."""
    if not contents.is_small(self):
        return
    value = contents.known(src) if contents.is_small(src) else None
    if value is None:
        contents.forget(self)
    elif contents.is_stand_in(src):
        contents.write_stand_in(self, value)
    else:
        contents.write(self, value)


# ------------------------------------------------------------------ fills


def fill_scalar_(self: Tensor, value: float | int | bool) -> Tensor:
    """aten::fill_.Scalar"""
    _fill("aten::fill_", self, value)
    return self


def fill_tensor_(self: Tensor, value: Tensor) -> Tensor:
    """aten::fill_.Tensor"""
    if value.dim() != 0:
        raise RuntimeError(
            f"fill_ only supports 0-dimension value tensor but got tensor with {value.dim()} dimensions."
        )
    if value.device != self.device and not value.is_cuda:
        return fill_scalar_(self, value.item())
    known = contents.known(value)
    _fill("aten::fill_", self, None if known is None else known)
    return self


def zero_(self: Tensor) -> Tensor:
    """aten::zero_"""
    _fill("aten::zero_", self, 0)
    return self


def _fill(name: str, self: Tensor, value: Tensor | float | int | bool | None) -> None:
    is_small = contents.is_small(self)
    if self.numel():
        args = (("self", self),) if name == "aten::zero_" else (("self", self), ("value", 0.0))
        number = signature(name, args, mutated=("self",))
        native.launch(number, self.get_device())
        if native.pending_plan():
            native.plan(number, [0], not is_small)
    if not is_small:
        return
    if value is None:
        contents.forget(self)
    else:
        contents.write(self, value)
