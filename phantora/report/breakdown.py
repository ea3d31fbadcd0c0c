"""Where the time of a rank went: computing, communicating in the open, or idle.

Definitions, for the window from 0 to the rank's end (the later of its host's end and its last work's end):

* compute_ns: time in which at least one kernel runs (the union over all streams and devices of the rank).
* communication_ns: time in which at least one communication kernel runs. A communication kernel runs from its start on
  this rank to its end, so waiting for other ranks inside it counts, as it does in a profile of a real GPU.
* exposed_communication_ns: the part of communication_ns in which no kernel runs.
* idle_ns: the rest; compute_ns + exposed_communication_ns + idle_ns is the window.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from phantora.trace.columns import as_int64, device_rows
from phantora.trace.model import RankTrace

Intervals = tuple[np.ndarray, np.ndarray]  # begins, ends: sorted, disjoint, none empty

# Written by the interception at the end of each optimizer step (intercept/step_marks.py).
OPTIMIZER_MARK = "optimizer.step"

# Not a method's range (PyTorch's Optimizer.step#Adam.step, DeepSpeed's DeepSpeedZeroOptimizer_Stage3.step), part of a step.
_STEP_NAME = re.compile(
    r"^(?!Optimizer\.step#).*?((?<!\.)\b(step|iter|iteration|batch)\b|(step|iter)[\W_]*\d+|ProfilerStep)",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Times of one window of one rank, in ns (see the module). name: of the step, or '' for the whole run."""

    name: str
    begin_ns: int
    end_ns: int
    compute_ns: int
    communication_ns: int
    exposed_communication_ns: int
    idle_ns: int


def rank_breakdown(trace: RankTrace) -> Breakdown:
    """The whole run of one rank."""
    kernels, communication = _unions(trace)
    return _window("", 0, rank_end_ns(trace), kernels, communication)


def step_breakdowns(trace: RankTrace) -> list[Breakdown]:
    """One breakdown per step: the script's own marks (outermost NVTX ranges named like 'step 3'), else the time from one
    step of its optimizer to the next (so the first step, which includes the start, is not among them).

    The window is the HOST's, so work that the device finishes after the host left the step counts to the next one,
    unless the script synchronizes.
    """
    kernels, communication = _unions(trace)
    return [_window(name, begin, end, kernels, communication) for name, begin, end in step_windows(trace)]


def rank_end_ns(trace: RankTrace) -> int:
    """The end of a rank: of its host, or of its last work if that is later."""
    ends = as_int64(trace.end_ns)
    return max(trace.host_end_ns, int(ends.max()) if len(ends) else 0)


def step_windows(trace: RankTrace) -> list[tuple[str, int, int]]:
    """(name, begin_ns, end_ns) of the outermost closed ranges whose names are those of steps, or between optimizer steps."""
    windows: list[tuple[str, int, int]] = []
    stack: list[tuple[str, int]] = []
    for time, name, depth in zip(trace.mark_ns, trace.mark_name, trace.mark_depth):
        if depth > 0:
            stack.append((name, time))
        elif depth < 0 and stack:
            opened, begin = stack.pop()
            inside = any(_STEP_NAME.search(outer) for outer, _ in stack)
            if _STEP_NAME.search(opened) and not inside:
                windows.append((opened, begin, time))
    return windows or _between_optimizer_steps(trace)


def _between_optimizer_steps(trace: RankTrace) -> list[tuple[str, int, int]]:
    times = [time for time, name in zip(trace.mark_ns, trace.mark_name) if name == OPTIMIZER_MARK]
    return [(f"step {i + 1}", begin, end) for i, (begin, end) in enumerate(zip(times, times[1:]))]


def union(begins: np.ndarray, ends: np.ndarray) -> Intervals:
    """The union of intervals as sorted disjoint intervals."""
    some = ends > begins
    order = np.argsort(begins[some], kind="stable")
    begins, ends = begins[some][order], ends[some][order]
    if not len(begins):
        return begins, ends
    reach = np.maximum.accumulate(ends)
    opens = np.concatenate(([True], begins[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return begins[opens], reach[closes]


def total(intervals: Intervals) -> int:
    """The length of a union."""
    return int((intervals[1] - intervals[0]).sum())


def clip(intervals: Intervals, begin: int, end: int) -> Intervals:
    """The part of a union between `begin` and `end`."""
    begins, ends = np.clip(intervals[0], begin, end), np.clip(intervals[1], begin, end)
    return begins[ends > begins], ends[ends > begins]


def _window(name: str, begin: int, end: int, kernels: Intervals, communication: Intervals) -> Breakdown:
    kernels, communication = clip(kernels, begin, end), clip(communication, begin, end)
    both = union(*(np.concatenate(pair) for pair in zip(kernels, communication)))
    compute, busy = total(kernels), total(both)
    return Breakdown(
        name=name, begin_ns=begin, end_ns=end, compute_ns=compute, communication_ns=total(communication),
        exposed_communication_ns=busy - compute, idle_ns=end - begin - busy,
    )  # fmt: skip


def _unions(trace: RankTrace) -> tuple[Intervals, Intervals]:
    rows = device_rows(trace)
    start, end = as_int64(trace.start_ns)[rows], as_int64(trace.end_ns)[rows]
    kernel = as_int64(trace.signature)[rows] >= 0
    return union(start[kernel], end[kernel]), union(start[~kernel], end[~kernel])
