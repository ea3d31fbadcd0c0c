"""Known contents of tensors of the simulated device.

A small tensor whose values are known (copied from the CPU, filled, counted, computed only from such) carries a CPU copy
in native code, so that `.item()`, shape exchange and routing counts are real. Limits are per kind of element, because
frameworks need them: masks and routing maps (integers, booleans) up to 4 MiB, bytes (pickled objects) up to 256 MiB,
floating-point numbers only up to 16 KiB (they decide little, and computing them costs host time).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

native: Any = sys.modules["phantora_native"]

FLOATING_LIMIT_BYTES = 16 << 10
INTEGER_LIMIT_BYTES = 4 << 20
BYTE_LIMIT_BYTES = 256 << 20


class Unknown(Exception):
    """Some input of a computation has no known contents."""


def set_limits() -> None:
    native.set_shadow_limits(FLOATING_LIMIT_BYTES, INTEGER_LIMIT_BYTES, BYTE_LIMIT_BYTES)


def is_small(tensor: Tensor) -> bool:
    """Whether contents of this tensor's storage are followed at all."""
    return native.small(tensor)


def known(tensor: Tensor) -> Tensor | None:
    """A CPU tensor that aliases the known contents, or None. Writing into it changes the contents."""
    if not tensor.is_cuda:
        return tensor
    if not tensor.numel():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    view = native.shadow(tensor)
    if view is None:
        return None
    if tensor.is_conj():
        view = torch._conj(view)
    return torch._neg_view(view) if tensor.is_neg() else view


def write(tensor: Tensor, value: Tensor | float | int | bool) -> None:
    """From now on `tensor` holds `value` (broadcast). Nothing happens when it is too large to be followed."""
    if not native.small(tensor):
        return
    view = native.shadow_new(tensor)
    if view is None:
        return
    if isinstance(value, Tensor):
        view.copy_(value)
    else:
        view.fill_(value)


def write_stand_in(tensor: Tensor, value: Tensor | float | int | bool) -> None:
    """`write`, but remembered as a stand-in, so that reading it is counted."""
    write(tensor, value)
    mark = getattr(native, "mark_stand_in", None)
    if mark is not None:
        mark(tensor)


def is_stand_in(tensor: Tensor) -> bool:
    """Whether the contents were derived from a stand-in."""
    ask = getattr(native, "is_stand_in", None)
    return ask is not None and ask(tensor)


def forget(tensor: Tensor) -> None:
    if tensor.is_cuda:
        native.shadow_drop(tensor)


def on_cpu(value: Any) -> Any:
    """An argument with every CUDA tensor replaced by its known contents; raises Unknown."""
    if isinstance(value, Tensor):
        contents = known(value)
        if contents is None:
            raise Unknown
        return contents
    if isinstance(value, (list, tuple)):
        return [on_cpu(item) for item in value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value
