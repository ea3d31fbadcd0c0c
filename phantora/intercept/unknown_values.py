"""What the simulated device answers when somebody reads a value that no one computed. One policy, in one place.

Large tensors have no contents, so a script that reads one (`loss.item()`, `mask.nonzero()`) gets a stand-in. The
stand-ins keep training scripts on their usual path: numbers are finite and never NaN, nothing overflowed, every mask is
as dense as `density` says, routers spread tokens evenly. Every read is counted (`session.stand_in`) and listed in the
report.

| what is unknown                        | stand-in |
|---|---|
| a floating-point or complex element    | `floating` (1.0) |
| an integer element                     | `integer` (1) |
| a boolean element                      | `boolean` (False) |
| `all(...)`, `any(...)`                 | True, False |
| `equal(a, b)`                          | True (two tensors that nobody knows) |
| how many elements a mask selects, `sum` of a mask | `density` (1.0) of them |
| distinct values (`unique`)             | every element is distinct |
| `topk` of unknown scores               | of up to `most_experts` classes: spread as `--moe-routing` says, evenly, row after row |
| an integer compared with a known one   | they differ (`comparisons`): no sampled token is the end of its text |
| a number compared with one over 1e6    | it is of ordinary size (`comparisons`) |
| overflow seen by GradScaler            | none |
| counts of `bincount`, `histc`           | as even as they can be |
| repeats of `repeat_interleave`         | 1 each |
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from phantora.intercept import moe_routing, session

# With a separator at the end: torchtitan and torchvision lie beside torch.
_TORCH_DIR = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownValues:
    """The settable part of the policy."""

    floating: float = 1.0
    """Stand-in of an unknown floating-point element."""
    integer: int = 1
    """Stand-in of an unknown integer element."""
    boolean: bool = False
    """Stand-in of an unknown boolean element."""
    density: float = 1.0
    """Share of True in an unknown mask, from 0 to 1."""
    balanced_routing: bool = True
    """Whether top-k of unknown scores is spread evenly; otherwise its indices stay unknown."""
    most_experts: int = 2048
    """Top-k over more classes is no router (Switch-C has 2048 experts: Fedus et al., 2021, table 9) but, say, a beam
    search over a vocabulary."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.density <= 1.0:
            raise ValueError(f"density must lie between 0 and 1, not {self.density}")
        if self.floating != self.floating:
            raise ValueError("floating must not be NaN: scripts stop on it")


_policy = UnknownValues()


def policy() -> UnknownValues:
    return _policy


def set_policy(**changes: float | int | bool) -> UnknownValues:
    """Change parts of the policy; returns the old one."""
    global _policy
    old, _policy = _policy, replace(_policy, **changes)
    return old


def restore_policy(old: UnknownValues) -> None:
    global _policy
    _policy = old


def element(dtype: torch.dtype) -> float | int | bool:
    """The stand-in of one element."""
    if dtype == torch.bool:
        return _policy.boolean
    if dtype.is_floating_point or dtype.is_complex:
        return _policy.floating
    return _policy.integer


def scalar_result(operator: str, dtype: torch.dtype) -> float | int | bool:
    """The stand-in of the single number that `operator` (no overload) computes from unknown data."""
    if operator in ("aten::all", "aten::equal"):
        return dtype.itemsize == 1 if dtype == torch.bool else 1
    if operator == "aten::any":
        return False
    return element(dtype)


def num_selected(num_elements: int) -> int:
    """How many elements an unknown mask selects."""
    return round(num_elements * _policy.density)


def spread(shape: torch.Size, dim: int, num_classes: int) -> Tensor:
    """Indices of shape `shape` along `dim` (k entries), distinct in a row, as --moe-routing says (moe_routing)."""
    weights = moe_routing.next_weights(num_classes)
    if weights is None:
        if moe_routing.chosen().lines:
            session.remark(f"--moe-routing: no line of the file has {num_classes} loads; a top-k over so many is spread evenly")
        return spread_evenly(shape, dim, num_classes)
    session.remark("routers of unknown scores spread tokens as --moe-routing says")
    k = shape[dim]
    others = [size for axis, size in enumerate(shape) if axis != dim % len(shape)]
    num_rows = shape.numel() // k
    counts = torch.tensor(moe_routing.token_counts(weights, num_rows, k), device="cpu")
    # Class after class takes its count of places; the places of one row are num_rows apart, so no class has two of them.
    places = torch.repeat_interleave(torch.arange(num_classes, device="cpu"), counts).view(k, num_rows).t()
    mixed = torch.arange(num_rows, device="cpu") * moe_routing.mixing_step(num_rows) % num_rows
    return places[mixed].reshape(*others, k).movedim(-1, dim)


def spread_evenly(shape: torch.Size, dim: int, num_classes: int) -> Tensor:
    """Indices of shape `shape` along `dim` (k entries) that use `num_classes` classes equally often, distinct in a
    row."""
    k = shape[dim]
    others = [size for axis, size in enumerate(shape) if axis != dim % len(shape)]
    rows = torch.arange(shape.numel(), device="cpu") % max(num_classes, 1)
    return rows.view(*others, k).movedim(-1, dim)


def count(operator: str) -> None:
    """Note that a stand-in was read, and where in the script."""
    session.stand_in(f"{operator} at {_caller()}")


def _caller() -> str:
    """file:line of the innermost frame outside this package and torch."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((session.PACKAGE_DIR, _TORCH_DIR)):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "no Python frame (autograd engine)"
