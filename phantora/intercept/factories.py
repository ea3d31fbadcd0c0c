"""Tensors made without work for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def efficient_zero_tensor(size: list[int], *, dtype: torch.dtype | None = None, device: Any = None, **unused: Any) -> Tensor:
    """aten::_efficientzerotensor: an undefined gradient as a tensor; here plain zeros of one element, expanded."""
    where = torch.device("cuda") if device is None else device
    return torch.zeros([1] * len(size), dtype=dtype, device=where).expand(size)
