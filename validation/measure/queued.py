"""How long work takes on the GPU when the host is not in its way."""

from __future__ import annotations

from collections.abc import Callable

import torch

_CALLS = 5


def mean_us(work: Callable[[], object], sleep_cycles: int) -> float:
    """Mean of five calls that were queued behind a sleep kernel of `sleep_cycles`, after two that warm up."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(sleep_cycles)
    begin.record()
    for _ in range(_CALLS):
        work()
    end.record()
    torch.cuda.synchronize()
    return round(begin.elapsed_time(end) / _CALLS * 1e3, 1)
