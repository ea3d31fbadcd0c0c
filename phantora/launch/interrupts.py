"""Ctrl-C, SIGTERM and SIGHUP during a run: the first ends it in order, the third at once.

The handlers only count. The engine's loop looks at the count between two turns, so nothing is torn in the middle; a run that
is ended writes what it has recorded, and only someone who asks three times loses it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Someone wants the run to end. code: the exit code that shells expect."""

    def __init__(self, signum: int) -> None:
        super().__init__("interrupted" if signum == signal.SIGINT else f"ended by {signal.Signals(signum).name}")
        self.code = 128 + signum


class Interrupts:
    """A context in which the signals count. cleanups: what still runs when the process ends at once."""

    def __init__(self) -> None:
        self.signum = 0
        self.cleanups: list[Callable[[], None]] = []
        self._count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                if signal.getsignal(signum) is not signal.SIG_IGN:  # ignored under nohup, and in a shell's background
                    self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]

    @property
    def code(self) -> int:
        """Exit code when a signal has come, else 0."""
        return 128 + self.signum if self.signum else 0

    def check(self) -> None:
        """Interrupted when a signal has come."""
        if self.signum:
            raise Interrupted(self.signum)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        self.signum = self.signum or signum
        if self._count == 2:
            _tell("\nphantora: ending the ranks and writing what was recorded (once more to give it up)\n")
        if self._count > 2:
            self._end_at_once()

    def _end_at_once(self) -> None:
        for cleanup in self.cleanups:
            try:
                cleanup()
            except Exception:
                pass  # the others still run
        if sys.stderr is not None and sys.stderr.isatty():
            _tell("\x1b[?25h")  # the progress line had hidden the cursor
        os._exit(self.code)


def _tell(text: str) -> None:
    """A handler must not use sys.stderr, which the interrupted code may be writing to."""
    try:
        os.write(2, text.encode())
    except OSError:
        pass
