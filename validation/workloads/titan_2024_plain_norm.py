"""titan_2024 with the RMSNorm of `norm_type = "rmsnorm"`: seven pointwise kernels and a mean, in float32."""

from __future__ import annotations

import titan_2024  # noqa: F401
import torch
from torch import Tensor, nn


class PlainRMSNorm(nn.Module):
    """As torch.nn.RMSNorm was before it had a kernel of its own."""

    def __init__(self, dim: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).type_as(x) * self.weight

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


nn.RMSNorm = PlainRMSNorm  # type: ignore[misc]
