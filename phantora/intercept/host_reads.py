"""Operators with which the host reads a value of the device, or would notice one.

With known contents the answer is real; otherwise `unknown_values` decides, and the read is counted.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from phantora.compute.call import OpCall, TensorSpec
from phantora.intercept import contents, session, unknown_values
from phantora.intercept.calls import dtype_name
from phantora.intercept.host_sync import sync_current_stream
from phantora.intercept.launching import launch

native: Any = sys.modules["phantora_native"]

_read_signatures: dict[torch.dtype, int] = {}


def _read_signature(dtype: torch.dtype) -> int:
    number = _read_signatures.get(dtype)
    if number is None:
        one = TensorSpec((), (), dtype_name(dtype))
        args = (("self", one), ("src", one), ("pinned", True), ("non_blocking", False))
        call = OpCall(name="memcpy_d2h", args=args, mutated=("self",))
        number = _read_signatures[dtype] = session.register_price(call)
    return number


def local_scalar_dense(self: Tensor) -> float | int | bool | complex:
    """aten::_local_scalar_dense (`.item()`): a copy of one element to pinned memory, and a wait for it."""
    native.launch(_read_signature(self.dtype), self.get_device())
    sync_current_stream(self.get_device())
    value = contents.known(self)
    if value is not None:
        if contents.is_stand_in(self):
            unknown_values.count("aten::_local_scalar_dense")
        return value.item()
    unknown_values.count("aten::_local_scalar_dense")
    return unknown_values.element(self.dtype)


def equal(self: Tensor, other: Tensor) -> bool:
    """aten::equal: real when both are known; tensors that nobody knows count as equal."""
    if self.device != other.device:
        raise RuntimeError(f"Cannot compare two tensors on different devices. Got: {self.device} and {other.device}")
    if self.shape != other.shape or self.dtype != other.dtype:
        return False
    if self.numel() == 0 or self is other:
        return True
    launch(self.get_device(), "aten::equal", ("self", self), ("other", other))
    sync_current_stream(self.get_device())
    mine, theirs = contents.known(self), contents.known(other)
    if mine is not None and theirs is not None:
        return torch.equal(mine, theirs)
    unknown_values.count("aten::equal")
    return bool(unknown_values.scalar_result("aten::equal", torch.bool))


def unscale_and_check(self: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """aten::_amp_foreach_non_finite_check_and_unscale_: gradients never overflow, so `found_inf` keeps its contents."""
    if self:
        launch(
            found_inf.get_device(),
            "aten::_amp_foreach_non_finite_check_and_unscale_",
            ("self", list(self)),
            ("found_inf", found_inf),
            ("inv_scale", inv_scale),
            mutated=("self", "found_inf"),
        )
    for gradient in self:
        contents.forget(gradient)


def assert_async(self: Tensor, *message: str) -> None:
    """aten::_assert_async: passes, unless the value is known to be false."""
    launch(self.get_device(), "aten::_assert_async", ("self", self))
    value = contents.known(self)
    if value is not None and not bool(value) and not contents.is_stand_in(self):
        raise RuntimeError(message[0] if message else "CUDA error: device-side assert triggered")
