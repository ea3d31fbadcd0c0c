"""Reductions, powers and random numbers: empty inputs, dtypes without the operation, impossible numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from phantora.intercept.checks.helpers import Arguments, Rule, require, type_name


# ------------------------------------------------------------------ reductions (ReduceOps.cpp, ReduceAllOps.cpp)


def _extremum(name: str) -> Callable[[Arguments], None]:
    """max and min, of everything or along a dimension."""

    def check(a: Arguments) -> None:
        self, dim = a["self"], a.get("dim")
        if self.numel() or "other" in a:
            return
        if dim is None:
            raise RuntimeError(
                f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
                "with the 'dim' argument."
            )
        wrapped = dim % max(self.dim(), 1)
        message = f"{name}(): Expected reduction dim {wrapped} to have non-zero size."
        require(not self.dim() or self.shape[wrapped] > 0, message, IndexError)

    return check


def _variance(a: Arguments) -> None:
    dtype = a["self"].dtype
    message = "std and var only support floating point and complex dtypes"
    require(dtype.is_floating_point or dtype.is_complex, message)


def _relu(a: Arguments) -> None:
    require(a["self"].dtype != torch.bool, "Boolean inputs not supported for relu")


def _power(a: Arguments) -> None:
    """Pow of integers to a number (Pow.cpp)."""
    self, exponent = a["self"], a["exponent"]
    if isinstance(self, Tensor) and isinstance(exponent, int) and not isinstance(exponent, bool) and exponent < 0:
        integral = not (self.dtype.is_floating_point or self.dtype.is_complex)
        require(not integral, "Integers to negative integer powers are not allowed.")


# ------------------------------------------------------------------ random numbers (Distributions.cpp, *Templates.h)


def _multinomial(a: Arguments) -> None:
    self, num_samples = a["self"], a["num_samples"]
    message = f"multinomial only supports floating-point dtypes for input, got: {type_name(self)}"
    require(self.dtype.is_floating_point, message)
    require(self.dim() == 0 or self.shape[-1] <= 1 << 24, "number of categories cannot exceed 2^24")
    require(num_samples > 0, "cannot sample n_sample <= 0 samples")
    message = "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
    require(a["replacement"] or self.dim() == 0 or num_samples <= self.shape[-1], message)


def _random(a: Arguments) -> None:
    start, end = a.get("from", 0), a.get("to")
    if isinstance(start, int) and isinstance(end, int):
        message = f"random_ expects 'from' to be less than 'to', but got from={start} >= to={end}"
        require(start < end, message)


def _normal(a: Arguments) -> None:
    if not isinstance(a.get("std"), Tensor):
        require(a["std"] >= 0.0, f"normal expects std >= 0.0, but found std {a['std']:g}")


def _uniform(a: Arguments) -> None:
    self, start, end = a["self"], a["from"], a["to"]
    if not (self.dtype.is_floating_point or self.dtype.is_complex):
        raise NotImplementedError(f"\"check_uniform_bounds\" not implemented for '{type_name(self)}'")
    message = f"uniform_ expects to return a [from, to) range, but found from={start:g} > to={end:g}"
    require(start <= end, message)


def _exponential(a: Arguments) -> None:
    require(
        a["self"].dtype.is_floating_point,
        "Exponential distribution is a continuous probability distribution. dtype must be a floating point but you "
        f"specified {type_name(a['self'])}",
    )


def _positive(name: str, parameter: str, label: str) -> Rule:
    """cauchy_, exponential_, log_normal_: a parameter that must be above zero."""

    def check(a: Arguments) -> None:
        if name == "exponential_":
            _exponential(a)
        message = f"{name} expects {label} > 0.0, but found {label}={a[parameter]:g}"
        require(a[parameter] > 0.0, message)

    return check


def _geometric(a: Arguments) -> None:
    require(0 < a["p"] < 1, f"geometric_ expects p to be in (0, 1), but got p={a['p']:g}")


def _bernoulli(a: Arguments) -> None:
    p = a["p"]
    if isinstance(p, Tensor):
        message = f"expected probabilities tensor to have floating type, got {type_name(p)}"
        require(p.dtype.is_floating_point, message)


RULES: dict[str, Rule] = {
    "max": _extremum("max"),
    "min": _extremum("min"),
    "var": _variance,
    "std": _variance,
    "var_mean": _variance,
    "std_mean": _variance,
    "relu": _relu,
    "pow": _power,
    "multinomial": _multinomial,
    "random_": _random,
    "normal_": _normal,
    "uniform_": _uniform,
    "exponential_": _positive("exponential_", "lambd", "lambda"),
    "cauchy_": _positive("cauchy_", "sigma", "sigma"),
    "log_normal_": _positive("log_normal_", "std", "std"),
    "geometric_": _geometric,
    "bernoulli_": _bernoulli,
}
