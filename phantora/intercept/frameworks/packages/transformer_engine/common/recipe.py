"""Recipes of FP8 training: what is scaled, and by whom."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Format(enum.Enum):
    """8-bit formats: of forward and of backward tensors."""

    E4M3 = "E4M3"
    E5M2 = "E5M2"
    HYBRID = "HYBRID"


class Recipe:
    """Base of all recipes."""

    def delayed(self) -> bool:
        return isinstance(self, DelayedScaling)

    def float8_current_scaling(self) -> bool:
        return isinstance(self, Float8CurrentScaling)

    def float8_block_scaling(self) -> bool:
        return isinstance(self, Float8BlockScaling)

    def mxfp8(self) -> bool:
        return isinstance(self, MXFP8BlockScaling)


@dataclass
class DelayedScaling(Recipe):
    """One scale per tensor, from the largest values of earlier steps, which all ranks of a group share."""

    margin: int = 0
    fp8_format: Format = Format.HYBRID
    amax_history_len: int = 1024
    amax_compute_algo: Any = "max"
    scaling_factor_compute_algo: Any = None
    reduce_amax: bool = True
    fp8_dpa: bool = False
    fp8_mha: bool = False
    override_linear_precision: Any = (False, False, False)

    def __init__(self, **settings: Any) -> None:
        for name, value in settings.items():
            setattr(self, name, value)


@dataclass
class Float8CurrentScaling(Recipe):
    """One scale per tensor, from its own largest value: one more pass over it."""

    fp8_format: Format = Format.HYBRID
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class Float8BlockScaling(Recipe):
    """A scale for each block of 128 elements (or 128 x 128)."""

    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False


@dataclass
class MXFP8BlockScaling(Recipe):
    """A scale for each 32 elements (Blackwell)."""

    margin: int = 0
    fp8_format: Format = Format.E4M3
    fp8_dpa: bool = False
    fp8_mha: bool = False
