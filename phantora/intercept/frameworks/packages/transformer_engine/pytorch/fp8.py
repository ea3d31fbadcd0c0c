"""Whether modules compute in FP8: a state of the process, as contexts set it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from transformer_engine.common.recipe import DelayedScaling, Recipe


class FP8GlobalStateManager:
    """The state. Scales are not computed; the largest values are exchanged as delayed scaling does."""

    enabled = False
    recipe: Recipe | None = None
    group: Any = None
    depth = 0
    num_forward_tensors = 0
    num_backward_tensors = 0

    @classmethod
    def is_fp8_enabled(cls) -> bool:
        return cls.enabled

    @classmethod
    def get_fp8_recipe(cls) -> Recipe:
        return cls.recipe or DelayedScaling()

    @classmethod
    def get_fp8_group(cls) -> Any:
        return cls.group

    @classmethod
    def is_fp8_calibration(cls) -> bool:
        return False

    @classmethod
    def with_fp8_parameters(cls) -> bool:
        return False

    @classmethod
    def reset(cls) -> None:
        cls.enabled, cls.recipe, cls.group, cls.depth = False, None, None, 0

    @classmethod
    def register(cls, num_forward: int, num_backward: int) -> bool:
        """A module computes in FP8 with so many tensors; True for the first one of the context."""
        is_first = not cls.num_forward_tensors
        cls.num_forward_tensors += num_forward
        cls.num_backward_tensors += num_backward
        return is_first

    @classmethod
    def reduce_largest(cls, count: int, group: Any) -> None:
        """All ranks of the group agree on the largest values: one float32 for each tensor."""
        if count and group is not None and torch.distributed.get_world_size(group) > 1:
            values = torch.empty(count, dtype=torch.float32, device="cuda")
            torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX, group=group)


@contextmanager
def fp8_autocast(
    enabled: bool = True,
    calibrating: bool = False,
    fp8_recipe: Recipe | None = None,
    fp8_group: Any = None,
    _graph: bool = False,
) -> Iterator[None]:
    """Modules inside compute in FP8. On leaving the outermost context, delayed scaling exchanges the largest values."""
    manager = FP8GlobalStateManager
    saved = manager.enabled, manager.recipe, manager.group
    manager.enabled, manager.recipe, manager.group = (
        enabled,
        fp8_recipe or (DelayedScaling() if enabled else None),
        fp8_group,
    )
    manager.depth += 1
    if manager.depth == 1:
        manager.num_forward_tensors = manager.num_backward_tensors = 0
    try:
        yield
    finally:
        manager.depth -= 1
        recipe = manager.recipe
        if (
            enabled
            and manager.depth == 0
            and isinstance(recipe, DelayedScaling)
            and recipe.reduce_amax
            and torch.is_grad_enabled()
        ):
            manager.reduce_largest(manager.num_forward_tensors, fp8_group)
        manager.enabled, manager.recipe, manager.group = saved


@contextmanager
def fp8_model_init(
    enabled: bool = True, recipe: Recipe | None = None, preserve_high_precision_init_val: bool = False
) -> Iterator[None]:
    """Parameters in FP8 alone are not modelled."""
    if enabled:
        raise NotImplementedError(
            "transformer_engine (stand-in of phantora): parameters kept in FP8 (fp8_model_init) are not modelled"
        )
    yield


def check_fp8_support() -> tuple[bool, str]:
    is_able = torch.cuda.get_device_capability() >= (8, 9)
    return is_able, "" if is_able else "Device compute capability 8.9 or higher required for FP8 execution."
