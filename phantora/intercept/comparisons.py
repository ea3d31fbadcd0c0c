"""Comparisons of numbers that nobody knows with known ones, and choices between the two.

* An unknown integer (a sampled token, a label made on the device) counts as different from every known one: no sampled
  token ends its text, every label counts, no position is padding. So loops of text generation run for as many tokens as
  they were asked for.
* An unknown floating-point number counts as one of ordinary size beside known ones of a million or more, infinity among
  them: a score is greater than the -1e9 that stands for 'none yet'.

These answers are stand-ins, and reading one is counted (`unknown_values`). `where` with a known condition that takes one
side only is no stand-in: its result is that side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents, unknown_values

HUGE = 1e6  # no loss, score or probability that a script compares reaches it; what stands for 'none' or 'masked' does
_INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))

_Kernel = Callable[..., Any]


def with_unequal_integers(answer: bool) -> Callable[[_Kernel], _Kernel]:
    """What goes around the kernel of eq (answer False) or ne (True)."""

    def around(kernel: _Kernel) -> _Kernel:
        def compare(self: Tensor, other: Any) -> Tensor:
            result = kernel(self, other)
            if _is_unknown_integer(self) and _is_known(other) or _is_unknown_integer(other) and _is_known(self):
                _answer(result, answer)
            return result

        return compare

    return around


def with_no_members(kernel: _Kernel) -> _Kernel:
    """Around the kernel of isin: unknown integers are not among the known ones."""

    def isin(elements: Tensor, tests: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
        result = kernel(elements, tests, assume_unique=assume_unique, invert=invert)
        if _is_unknown_integer(elements) and _is_known(tests):
            _answer(result, invert)
        return result

    return isin


def with_ordinary_numbers(compare: Callable[[Any, Any], Tensor]) -> Callable[[_Kernel], _Kernel]:
    """What goes around the kernel of gt, ge, lt or le; `compare` is the same comparison of known numbers."""

    def around(kernel: _Kernel) -> _Kernel:
        def compared(self: Tensor, other: Any) -> Tensor:
            result = kernel(self, other)
            if contents.is_small(result) and contents.known(result) is None:
                ordinary = torch.tensor(unknown_values.policy().floating, device="cpu")
                if _is_unknown_float(self) and (huge := _huge(other)) is not None:
                    contents.write_stand_in(result, compare(ordinary, huge))
                elif _is_unknown_float(other) and (huge := _huge(self)) is not None:
                    contents.write_stand_in(result, compare(huge, ordinary))
            return result

        return compared

    return around


def with_one_side(kernel: _Kernel) -> _Kernel:
    """Around the kernel of where: a known condition that is True (or False) throughout, and that side is known."""

    def where(condition: Tensor, self: Tensor, other: Tensor) -> Tensor:
        result = kernel(condition, self, other)
        if not contents.is_small(result) or contents.known(result) is not None:
            return result
        taken = contents.known(condition)
        if taken is None or not taken.numel() or bool(taken.any()) != bool(taken.all()):
            return result
        source = self if bool(taken.all()) else other
        value = contents.known(source)
        if value is not None:
            is_stand_in = any(t.is_cuda and contents.is_stand_in(t) for t in (condition, source))
            (contents.write_stand_in if is_stand_in else contents.write)(result, value)
        return result

    return where


def _is_unknown_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _INTEGERS and contents.known(value) is None


def _is_known(value: Any) -> bool:
    return not isinstance(value, Tensor) or contents.known(value) is not None


def _is_unknown_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and contents.known(value) is None


def _huge(value: Any) -> Tensor | None:
    """A known number, or known numbers, all of them huge."""
    known = contents.known(value) if isinstance(value, Tensor) else torch.tensor(value, device="cpu")
    return known if known is not None and known.numel() and bool((known.double().abs() >= HUGE).all()) else None


def _answer(result: Tensor, answer: bool) -> None:
    if contents.is_small(result) and contents.known(result) is None:
        contents.write_stand_in(result, answer)
