"""Marks training steps: the end of each step of the first optimizer that steps.

A report can then say how long a step takes although the script says nothing (scripts that mark their steps with NVTX ranges
are taken at their word instead). A global hook of torch.optim, so wrappers (FSDP, accelerate, ...) do not matter.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

import torch

from phantora.engine.protocol import Kind
from phantora.intercept import session

MARK = "optimizer.step"
# They step once with gradients of zeros, so that an optimizer's states exist: torch.distributed.checkpoint.state_dict before
# it saves or loads them, DeepSpeed's ZeRO as it starts.
_MAKING_STATES = frozenset(("_init_optim_state", "initialize_optimizer_states"))
_FRAMES_ABOVE = 8  # this hook, the optimizer's wrappers, DeepSpeed's own step of a group

_first: weakref.ReferenceType[Any] | None = None


def install() -> None:
    """Once, at the end of `import torch`."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    global _first
    if _is_making_states():
        return
    if _first is None or _first() is None:
        _first = weakref.ref(optimizer)
    if _first() is optimizer and session.is_rank_process():
        native: Any = sys.modules["phantora_native"]
        native.emit(int(Kind.MARK), native.device(), session.string_id(MARK), 0, 0)


def _is_making_states() -> bool:
    frame = sys._getframe(1)
    for _ in range(_FRAMES_ABOVE):
        if frame is None:
            return False
        if frame.f_code.co_name in _MAKING_STATES:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
