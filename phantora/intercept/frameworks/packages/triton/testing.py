"""Stand-in for triton.testing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def do_bench(fn: Callable[[], Any], warmup: int = 25, rep: int = 100, **_: Any) -> float:
    """Milliseconds of simulated time that one call takes."""
    fn()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    fn()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)
