"""Megatron's dataset helpers: the wheel ships them compiled, but megatron.training runs `make` for them, which it has
no file for."""

from __future__ import annotations

import importlib.util
from types import ModuleType


def after(utils: ModuleType) -> None:
    """`utils` is megatron.core.datasets.utils: nothing is left to compile when the helpers are there."""
    if importlib.util.find_spec("megatron.core.datasets.helpers_cpp") is not None:
        utils.compile_helpers = lambda: None  # type: ignore[attr-defined]
