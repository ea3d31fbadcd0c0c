"""Layer norm and RMS norm: torch's fused kernels, which move the same bytes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Norm(nn.Module):
    has_bias = False

    def __init__(
        self,
        normalized_shape: Any = None,
        eps: float = 1e-5,
        sequence_parallel: bool | None = None,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        hidden_size: int | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        shape = hidden_size if normalized_shape is None else normalized_shape
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)  # type: ignore[arg-type]
        self.eps, self.zero_centered_gamma = eps, zero_centered_gamma
        settings = {
            "dtype": params_dtype or dtype or torch.get_default_dtype(),
            "device": "cuda" if device is None else device,
        }
        self.weight = nn.Parameter((torch.zeros if zero_centered_gamma else torch.ones)(self.shape, **settings))
        parameters = [self.weight]
        if self.has_bias:
            self.bias = nn.Parameter(torch.zeros(self.shape, **settings))
            parameters.append(self.bias)
        for parameter in parameters:
            parameter.sequence_parallel = bool(sequence_parallel)  # type: ignore[attr-defined]

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.fill_(0.0 if self.zero_centered_gamma else 1.0)


class LayerNorm(_Norm):
    """transformer_engine.pytorch.LayerNorm"""

    has_bias = True

    def forward(self, tensor: Tensor) -> Tensor:
        return F.layer_norm(tensor, self.shape, self.weight, self.bias, self.eps)


class RMSNorm(_Norm):
    """transformer_engine.pytorch.RMSNorm"""

    def forward(self, tensor: Tensor) -> Tensor:
        return F.rms_norm(tensor, self.shape, self.weight, self.eps)


def normalize(kind: str, tensor: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """What a module that begins with a norm does first."""
    if kind == "RMSNorm":
        return F.rms_norm(tensor, weight.shape, weight, eps)
    if kind != "LayerNorm":
        raise ValueError(f"normalization must be LayerNorm or RMSNorm, not {kind!r}")
    return F.layer_norm(tensor, weight.shape, weight, bias, eps)
