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

_first: weakref.ReferenceType[Any] | None = None


def install() -> None:
    """Once, at the end of `import torch`."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    global _first
    if _first is None or _first() is None:
        _first = weakref.ref(optimizer)
    if _first() is optimizer and session.is_rank_process():
        native: Any = sys.modules["phantora_native"]
        native.emit(int(Kind.MARK), native.device(), session.string_id(MARK), 0, 0)
