"""What torchtitan 0.3.0 calls that torch has only from 2.14 on, for older ones: its steps run with 2.13, which a CPU build exists of.

* torch.distributed.set_timeout(timeout, group): how long NCCL's watchdog waits. Nothing of the simulated step depends on it.
* step(arg_mbs=, kwarg_mbs=, target_mbs=) of pipeline schedules: microbatches that the caller has split already.

The spmd_types of 0.3.0's default `--parallelism.spmd-backend` need 2.14's fully_shard; `partial_dtensor` does not.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

_SCHEDULES = "torch.distributed.pipelining.schedules"


def after(package: ModuleType) -> None:
    """When torchtitan has been imported; its modules come after."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist, "set_timeout"):
        dist.set_timeout = _set_timeout  # type: ignore[attr-defined]
    if _SCHEDULES in sys.modules:
        _take_split_batches(sys.modules[_SCHEDULES])
        return
    from phantora.intercept.boot import Hook, HookFinder

    sys.meta_path.insert(0, HookFinder({_SCHEDULES: Hook(None, _take_split_batches)}))


def _set_timeout(timeout: Any, group: Any = None) -> None:
    """The simulated NCCL has no watchdog that could end a run."""


def _take_split_batches(schedules: ModuleType) -> None:
    import inspect

    for cls in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        if "arg_mbs" not in inspect.signature(cls.step).parameters:
            cls.step = _with_split_batches(cls.step)


def _with_split_batches(step: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(step)
    def wrapped(
        self: Any, *args: Any, arg_mbs: Any = None, kwarg_mbs: Any = None, target_mbs: Any = None,
        losses: Any = None, return_outputs: bool = True, loss_kwargs: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        if arg_mbs is None and kwarg_mbs is None and target_mbs is None:
            given = {name: value for name, value in (("losses", losses), ("loss_kwargs", loss_kwargs)) if value is not None}
            return step(self, *args, return_outputs=return_outputs, **given, **kwargs)
        stages = [self._stage] if hasattr(self, "_stage") else self._stages
        for stage in stages:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        count = self._n_microbatches
        given = {} if loss_kwargs is None else {"loss_kwargs": loss_kwargs}
        self._step_microbatches(
            arg_mbs or [()] * count, kwarg_mbs or [{}] * count, target_mbs, losses, return_outputs, **given
        )
        last = next((stage for stage in stages if stage.is_last), None)
        return self._merge_outputs(last.output_chunks) if last is not None and return_outputs else None

    return wrapped
