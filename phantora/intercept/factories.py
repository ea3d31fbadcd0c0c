"""Operators that only choose among others, or make tensors without work for the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def efficient_zero_tensor(
    size: list[int], *, dtype: torch.dtype | None = None, device: Any = None, **unused: Any
) -> Tensor:
    """aten::_efficientzerotensor: an undefined gradient as a tensor; here plain zeros of one element, expanded."""
    where = torch.device("cuda") if device is None else device
    return torch.zeros([1] * len(size), dtype=dtype, device=where).expand(size)


def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor, maximum_indices: Tensor,
    num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool, per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:  # fmt: skip
    """aten::_embedding_bag_backward: a sparse or a dense gradient."""
    if sparse:
        return torch.ops.aten._embedding_bag_sparse_backward.default(
            grad, indices, offsets, offset2bag, bag_size, num_weights, scale_grad_by_freq, mode, per_sample_weights,
            padding_idx,
        )  # fmt: skip
    return torch.ops.aten._embedding_bag_dense_backward.default(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
        padding_idx,
    )  # fmt: skip
