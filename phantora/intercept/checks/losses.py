"""Losses, sampling of grids, complex numbers from their parts: which dtypes may meet in one call."""

from __future__ import annotations

import torch

from phantora.intercept.checks.helpers import Arguments, Rule, require, require_type, type_name


# ------------------------------------------------------------------ losses and sampling of grids


def _nll_loss(a: Arguments) -> None:
    """LossNLL.cpp, cuda/NLLLoss.cu: Byte works too, without a second dimension."""
    target = a["target"]
    message = f"expected target dtype to be Long or Byte, but got {type_name(target)}"
    require(target.dtype in (torch.int64, torch.uint8), message)
    require_type(a["self"], a["weight"])


def _nll_loss2d(a: Arguments) -> None:
    """cuda/NLLLoss2d.cu"""
    require(a["target"].dtype == torch.int64, f"expected scalar type Long but found {type_name(a['target'])}")
    require_type(a["self"], a["weight"])


def _multi_margin_loss(a: Arguments) -> None:
    require(a["target"].dtype == torch.int64, f"expected scalar type Long but found {type_name(a['target'])}")


def _binary_cross_entropy(a: Arguments) -> None:
    """cuda/Loss.cu: a TensorIterator without promotion."""
    self, target = a["self"], a["target"]
    require(self.dtype == target.dtype, f"Found dtype {type_name(target)} but expected {type_name(self)}")


def _grid_sampler(a: Arguments) -> None:
    require_type(a["input"], a["grid"])


def _upsample_nearest(a: Arguments) -> None:
    """cuda/UpSampleNearest*d.cu: floating point and bytes."""
    dtype = a["self"].dtype
    if dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
        raise NotImplementedError(f"\"upsample_nearest_out_frame\" not implemented for '{type_name(a['self'])}'")


def _complex(a: Arguments) -> None:
    """complex_check_dtype in TensorFactories.cpp."""
    real, imag = list(a.values())[:2]
    require(
        real.dtype == imag.dtype,
        f"Expected object of scalar type {type_name(real)} but got scalar type {type_name(imag)} for second argument",
    )


RULES: dict[str, Rule] = {
    "upsample_nearest1d": _upsample_nearest,
    "upsample_nearest2d": _upsample_nearest,
    "upsample_nearest3d": _upsample_nearest,
    "nll_loss_forward": _nll_loss,
    "nll_loss2d_forward": _nll_loss2d,
    "multi_margin_loss": _multi_margin_loss,
    "binary_cross_entropy": _binary_cross_entropy,
    "grid_sampler_2d": _grid_sampler,
    "grid_sampler_3d": _grid_sampler,
    "complex": _complex,
    "polar": _complex,
}
