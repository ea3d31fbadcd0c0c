"""What the report says of compiled code, and keeping the compiler's own time off the virtual clock.

On a real machine the first step contains the compilation (tens of seconds, minutes with max-autotune). Here it is not
counted: it would drown the steps that a simulation is asked for, and what Triton and ptxas take is not known here.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import time
from collections import Counter
from typing import Any

from phantora.intercept import session

native: Any = sys.modules["phantora_native"]

counts: Counter[str] = Counter()
"""'graphs' (forward and backward counted apart), 'cuda graphs', 'kernels' (distinct fused ones), 'eager' (not
compilable)."""

_is_compiling = False
_is_garbage_left = False
_compiling_since_ns = 0


def install(callback: Any) -> None:
    """Once: notes at the end of the rank, the clock around every compilation. `callback` is torch._dynamo.callback."""
    handler = callback.CompilationCallbackHandler  # its methods, because torch._dynamo.reset() drops what is registered
    start, end = handler.run_start_callbacks, handler.run_end_callbacks

    def run_start_callbacks(self: Any, *args: Any) -> None:
        _begin_compiling()
        start(self, *args)

    def run_end_callbacks(self: Any, *args: Any) -> None:
        end(self, *args)
        _end_compiling()

    handler.run_start_callbacks, handler.run_end_callbacks = run_start_callbacks, run_end_callbacks
    session.before_finish(_say_totals)


class _StillClock:
    """The module `time` for the compiler, which times its phases: reading it moves no virtual clock.

    A graph that is compiled and one that comes from the cache pass through different phases, some of them before and
    after the callbacks above.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time_ns(self) -> int:
        return native.now_ns()

    def time(self) -> float:
        return native.now_ns() / 1e9

    perf_counter_ns, perf_counter = time_ns, time


def still_clocks() -> None:
    """Once, when Inductor has been imported."""
    from torch._dynamo import metrics_context, utils

    for module in (metrics_context, utils):
        if hasattr(module, "time"):
            setattr(module, "time", _StillClock())


def count_graph() -> None:
    counts["graphs"] += 1


def count_kernel(name: str) -> None:
    counts["kernels"] += 1


def _begin_compiling() -> None:
    """From here on the CPU time of this process is the compiler's, and so is what it does with the device
    (constants)."""
    global _is_compiling, _compiling_since_ns
    _is_compiling, _compiling_since_ns = True, native.now_ns()
    native.pause_cpu_time(True)
    _watch_progress_bars(False)
    gc.collect()
    native.set_recording(False)


def _end_compiling() -> None:
    global _is_compiling, _is_garbage_left
    _is_compiling, _is_garbage_left = False, True
    _watch_progress_bars(True)
    native.set_recording(True)
    native.set_now_ns(_compiling_since_ns)  # clocks were read, and each reading takes virtual time
    native.pause_cpu_time(False)


_monitor_intervals: list[float] = []


def _watch_progress_bars(on: bool) -> None:
    """tqdm's first bar starts a thread, which would be one of the script's; while compiling, torch.fx makes bars."""
    with contextlib.suppress(ImportError):
        importlib.import_module("tqdm.std")
    bars = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if bars is not None and not on:
        _monitor_intervals.append(bars.monitor_interval)
        bars.monitor_interval = 0
    elif bars is not None and _monitor_intervals:
        bars.monitor_interval = _monitor_intervals.pop()


def collect_garbage() -> None:
    """Called when a graph runs for the second time.

    Dynamo leaves cycles behind that keep tensors of the first step (frames of exceptions at graph breaks). How soon
    Python's collector runs by itself depends on how much was allocated meanwhile, which differs between a graph that
    was compiled and one that was cached: here it runs at definite points.
    """
    global _is_garbage_left
    if _is_garbage_left and not _is_compiling:
        _is_garbage_left = False
        gc.collect()


def _say_totals() -> None:
    """One remark with the counts; ranks that did the same say the same, which the report shows once."""
    from torch._dynamo.utils import counters

    if not counts["graphs"] and not counts["eager"]:
        return
    breaks = sum(counters["graph_break"].values())
    parts = [f"{counts['graphs']} graphs compiled, modelled ({counts['kernels']} fused kernels, {breaks} graph breaks)"]
    if counts["cuda graphs"]:
        parts.append(f"{counts['cuda graphs']} of them replayed as CUDA graphs")
    if counts["eager"]:
        parts.append(f"{counts['eager']} could not be compiled here and ran as eager operators")
    session.remark(f"torch.compile: {'; '.join(parts)}; the time that compiling takes is not counted")
