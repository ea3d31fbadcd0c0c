"""Norms in one kernel, as torch's: the same bytes are moved."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Norm(nn.Module):
    has_bias = False

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, elementwise_affine: bool = True, **_: Any) -> None:
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.weight = nn.Parameter(torch.ones(self.normalized_shape)) if elementwise_affine else None
        self.bias = nn.Parameter(torch.zeros(self.normalized_shape)) if elementwise_affine and self.has_bias else None

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class FusedLayerNorm(_Norm):
    has_bias = True

    def forward(self, tensor: Tensor) -> Tensor:
        return F.layer_norm(tensor, self.normalized_shape, self.weight, self.bias, self.eps)


class FusedRMSNorm(_Norm):
    def forward(self, tensor: Tensor) -> Tensor:
        return F.rms_norm(tensor, self.normalized_shape, self.weight, self.eps)


class MixedFusedLayerNorm(FusedLayerNorm):
    """The result has the dtype of the weight."""

    def forward(self, tensor: Tensor) -> Tensor:
        return super().forward(tensor.to(self.weight.dtype) if self.weight is not None else tensor)


class MixedFusedRMSNorm(FusedRMSNorm):
    """The result has the dtype of the weight."""

    def forward(self, tensor: Tensor) -> Tensor:
        return super().forward(tensor.to(self.weight.dtype) if self.weight is not None else tensor)


class FusedLayerNormAffineFunction:
    """As Megatron-Core calls it: apply(input, weight, bias, shape, eps, memory_efficient)."""

    @staticmethod
    def apply(
        tensor: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float, memory_efficient: bool = False
    ) -> Tensor:
        return F.layer_norm(tensor, tuple(shape), weight, bias, eps)


def fused_layer_norm_affine(
    tensor: Tensor, weight: Tensor, bias: Tensor, shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    return F.layer_norm(tensor, tuple(shape), weight, bias, eps)


def fused_rms_norm_affine(
    tensor: Tensor, weight: Tensor, shape: Any, eps: float = 1e-6, memory_efficient: bool = False
) -> Tensor:
    return F.rms_norm(tensor, tuple(shape), weight, eps)
