"""The script's clocks read virtual time.

time.time/time_ns/perf_counter/perf_counter_ns read the rank's virtual host clock and time.sleep moves it. time.monotonic stays
real, because threads, locks and sockets time out by it. Installed before torch is imported, so that `from time import
perf_counter` anywhere binds the patched functions. Outside a connected rank process (the launcher, DataLoader workers) they
all read the real clocks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from phantora.intercept import session

# Virtual time 0 as a date: fixed, so that two runs print the same. 2026-01-01T00:00:00Z.
EPOCH_NS = 1_767_225_600 * 1_000_000_000

# What reading a clock costs: a Python call round clock_gettime through the vDSO. Not zero: a script may poll the clock.
READ_NS = 60

_real = {name: getattr(time, name) for name in ("time", "time_ns", "perf_counter", "perf_counter_ns", "sleep")}


# A rank that only looks at clocks tells the engine of its progress this often (virtual time): partners may wait for it.
_REPORT_NS = 10_000_000
_reported_ns = 0


def _now_ns() -> int:
    global _reported_ns
    native = sys.modules["phantora_native"]
    native.advance_ns(READ_NS)
    now_ns = native.now_ns()
    if now_ns - _reported_ns > _REPORT_NS and threading.current_thread() is threading.main_thread():
        _reported_ns = now_ns
        session.note("clock")
    return now_ns


def _time() -> float:
    return (EPOCH_NS + _now_ns()) / 1e9 if session.is_rank_process() else _real["time"]()


def _time_ns() -> int:
    return EPOCH_NS + _now_ns() if session.is_rank_process() else _real["time_ns"]()


def _perf_counter() -> float:
    return _now_ns() / 1e9 if session.is_rank_process() else _real["perf_counter"]()


def _perf_counter_ns() -> int:
    return _now_ns() if session.is_rank_process() else _real["perf_counter_ns"]()


def _sleep(seconds: float) -> None:
    if not session.is_rank_process() or threading.current_thread() is not threading.main_thread():
        _real["sleep"](seconds)  # a background thread that polls must not spin
        return
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    sys.modules["phantora_native"].advance_ns(int(seconds * 1e9))
    if session.world_size() > 1:
        # Others act meanwhile: a script that polls for their file sees it when it is there in virtual time.
        session.call("sleep")
    else:
        _real["sleep"](0)


def install() -> None:
    """Replace the functions in the `time` module (once per process)."""
    time.time, time.time_ns = _time, _time_ns
    time.perf_counter, time.perf_counter_ns = _perf_counter, _perf_counter_ns
    time.sleep = _sleep
    for function in (_time, _time_ns, _perf_counter, _perf_counter_ns, _sleep):
        function.__name__ = function.__qualname__ = function.__name__.lstrip("_")
    _install_threads()
    os.register_at_fork(after_in_child=session.detach_after_fork)


# ------------------------------------------------------------------ threads of a rank
# A thread started by the script has its own host clock: it begins when its starter's stood, and whoever joins it
# has waited until its end.


class _Domains:
    next_domain = 1


def _install_threads() -> None:
    start, join, bootstrap = threading.Thread.start, threading.Thread.join, threading.Thread._bootstrap_inner

    def started(self: threading.Thread) -> None:
        if session.is_rank_process():
            self._phantora_domain = (_Domains.next_domain, sys.modules["phantora_native"].now_ns())  # type: ignore[attr-defined]
            session.note("thread_start", number=_Domains.next_domain)
            _Domains.next_domain += 1
        start(self)

    def run(self: threading.Thread) -> None:
        domain: Any = getattr(self, "_phantora_domain", None)
        if domain is None or not session.is_rank_process():
            return bootstrap(self)
        native = sys.modules["phantora_native"]
        native.enter_thread(*domain)
        try:
            bootstrap(self)
        finally:
            self._phantora_end_ns = native.now_ns()  # type: ignore[attr-defined]
            if session.is_rank_process():
                session.note("thread_end", number=domain[0])

    def joined(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        end_ns = getattr(self, "_phantora_end_ns", None)
        if end_ns is not None and session.is_rank_process():
            native = sys.modules["phantora_native"]
            begin_ns = native.now_ns()
            native.wait_until_ns(end_ns)
            session.note("thread_join", number=self._phantora_domain[0], begin_ns=begin_ns)  # type: ignore[attr-defined]

    threading.Thread.start, threading.Thread.join = started, joined  # type: ignore[method-assign]
    threading.Thread._bootstrap_inner = run  # type: ignore[attr-defined]
