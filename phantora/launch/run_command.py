"""What a user sees of `phantora record-and-simulate`: progress, the ranks' output, the results on disk, the final table."""

from __future__ import annotations

import re
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from phantora.engine.simulation import Simulation, State
from phantora.errors import UserError
from phantora.launch import terminal
from phantora.launch.interrupts import Interrupts
from phantora.launch.job import Job, JobResult
from phantora.launch.options import JobOptions
from phantora.launch.results import INTERNAL_ERROR, Written, write_results
from phantora.launch.texts import shortened

_REFRESH_S = 0.25
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,99}(:|$)")  # the last line of a traceback, or the first of it


def run_job(options: JobOptions) -> int:
    """Run, write the results, print the table; the exit code of the command."""
    with Interrupts() as interrupts:
        try:
            return _run_job(options, interrupts)
        except UserError:
            raise
        except Exception:
            terminal.say("phantora: internal error: this is a fault of phantora, not of the script\n" + traceback.format_exc().rstrip())
            return INTERNAL_ERROR


def _run_job(options: JobOptions, interrupts: Interrupts) -> int:
    progress = Progress()
    with progress:
        job = Job(options, progress.write, progress.update, progress.warn, interrupts)
        result = job.run()
        options = job.options  # of a user's own launcher: with the world that it made
    if result.is_user_error:
        terminal.say(f"phantora: {result.error}")
        return result.exit_code
    written = write_results(result.run, options)
    for failure in result.log_failures:
        written.fail(failure, 1)
    if result.error is None or any(len(trace.start_ns) for trace in result.run.ranks):
        _print_report(result, written)
    for failure in written.failures:
        terminal.say(f"phantora: {failure}")
    if result.error is not None:
        terminal.say(f"phantora: {_error_text(result, options)}")
        terminal.say(f"phantora: the ranks' output is in {options.log_dir}")
    return result.exit_code or interrupts.code or written.code


def _print_report(result: JobResult, written: Written) -> None:
    from phantora.report.table import print_report

    try:
        with terminal.surviving(sys.stdout):
            print_report(result.run, written.files, summary=written.summary)
    except Exception:
        written.fail("the report cannot be printed: internal error\n" + traceback.format_exc().rstrip(), INTERNAL_ERROR)


def _error_text(result: JobResult, options: JobOptions) -> str:
    """What ended the run; a traceback that stands on the terminal already is not repeated."""
    assert result.error is not None
    lines = result.error.splitlines()
    if result.failed_rank in options.shown_ranks() and len(lines) > 2:
        last = [line for line in lines if line and not line[0].isspace()]
        causes = [line for line in last[1:] if not line.startswith(("Traceback", "(also failed"))]
        cause = [shortened(line, 400) for line in ([line for line in causes if _EXCEPTION.match(line)] or causes)[-1:]]
        others = [line for line in last if line.startswith("(also failed")]
        lines = [lines[0], *cause, *others]
    if "OutOfMemoryError" in result.error:
        gpu = result.run.cluster.gpu  # type: ignore[attr-defined]
        lines.append(f"it does not fit: {gpu.name} has {gpu.visible_memory_bytes / 2**30:.2f} GiB for programs")
    return "\n".join(lines)


class Progress:
    """A line in virtual time while the job runs (on a terminal only), with the ranks' output above it."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._line_is_open = False
        self._live: Any = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True, highlight=False)
            self._live = Live("", console=self._console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Progress:
        self._draw(lambda live: live.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._draw(lambda live: live.stop())

    def write(self, text: str, stream: TextIO) -> None:
        """Text of a rank: as it is, above the progress line. While its last line is open there is no progress line."""
        if not self._line_is_open:
            self._draw(lambda live: live.update("", refresh=True))
        terminal.write(text, stream)
        self._line_is_open = not text.endswith("\n")
        self._drawn_at = 0.0

    def warn(self, text: str) -> None:
        """A message of the command itself, while the job runs."""
        start = "\n" if self._line_is_open and self._live is not None else ""
        self.write(f"{start}phantora: warning: {text}\n", sys.stderr)

    def _draw(self, action: Callable[[Any], None]) -> None:
        if self._live is not None:
            try:
                action(self._live)
            except OSError:  # the terminal is gone
                self._live = None

    def update(self, simulation: Simulation) -> None:
        """Redraw, at most a few times a second."""
        now = time.monotonic()
        if self._live is None or self._line_is_open or now - self._drawn_at < _REFRESH_S:
            return
        self._drawn_at = now
        states = [rank.state for rank in simulation.ranks]
        started = sum(state is not State.ABSENT for state in states)
        finished = sum(state is State.FINISHED for state in states)
        work = sum(len(rank.timeline.trace.start_ns) for rank in simulation.ranks)
        clock_ns = max(rank.timeline.clock_ns for rank in simulation.ranks)
        if not started:
            text = f"starting {len(states)} rank{'s' if len(states) > 1 else ''} ..."
        else:
            text = (
                f"virtual {clock_ns / 1e9:.3f} s · real {now - self._started:.1f} s · {work:,} kernels and collectives · "
                f"{finished} of {len(states)} ranks done"
            )
        from rich.text import Text

        line = Text(text, style="dim", no_wrap=True, overflow="ellipsis")
        self._draw(lambda live: live.update(line, refresh=True))
