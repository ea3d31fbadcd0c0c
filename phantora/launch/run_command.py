"""What a user sees of `phantora record-and-simulate`: progress, the ranks' output, the results on disk, the final table."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO

from phantora.engine.simulation import Simulation, State
from phantora.launch.job import Job, JobResult
from phantora.launch.options import JobOptions

_REFRESH_S = 0.25
_MAX_PERFETTO_RANKS = 16  # more make a trace that the UI opens slowly; --perfetto-ranks says which


def run_job(options: JobOptions) -> int:
    """Run, write the results, print the table; the exit code of the command."""
    progress = Progress(options)
    with progress:
        result = Job(options, progress.write, progress.update).run()
    try:
        files = write_results(result, options)
    except KeyboardInterrupt:  # a second Ctrl-C
        return 130
    for warning in result.warnings:
        print(f"phantora: warning: {warning}", file=sys.stderr)
    if result.error is None or any(len(trace.start_ns) for trace in result.run.ranks):
        from phantora.report.table import print_report

        print_report(result.run, files)
    if result.error is not None:
        print(f"phantora: {_error_text(result, options)}", file=sys.stderr)
        if result.exit_code != 2:
            print(f"phantora: the ranks' output is in {options.log_dir}", file=sys.stderr)
    return result.exit_code


def _error_text(result: JobResult, options: JobOptions) -> str:
    """What ended the run; a traceback that stands on the terminal already is not repeated."""
    assert result.error is not None
    lines = result.error.splitlines()
    if result.failed_rank in options.shown_ranks() and len(lines) > 2:
        last = [line for line in lines if line and not line[0].isspace()]
        cause = [line for line in last[1:] if not line.startswith(("Traceback", "(also failed"))][-1:]
        others = [line for line in last if line.startswith("(also failed")]
        lines = [lines[0], *cause, *others]
    if "OutOfMemoryError" in result.error:
        gpu = result.run.cluster.gpu  # type: ignore[attr-defined]
        lines.append(f"it does not fit: {gpu.name} has {gpu.visible_memory_bytes / 2**30:.2f} GiB for programs")
    return "\n".join(lines)


def write_results(result: JobResult, options: JobOptions) -> dict[str, Path]:
    """summary.json and the traces; {what: path}. A partial run is written as far as it was recorded."""
    from phantora.report.summary import write_summary

    out = Path(options.out)
    files: dict[str, Path] = {}
    if result.exit_code == 2:
        return files
    files["summary"] = write_summary(result.run, out)
    if options.chakra:
        from phantora.exporters.chakra import write_chakra

        files["chakra"] = write_chakra(result.run, out)
    if options.perfetto:
        from phantora.exporters.perfetto import write_perfetto

        ranks = options.perfetto_ranks
        if ranks is None:
            ranks = tuple(range(min(options.world_size, _MAX_PERFETTO_RANKS)))
        files["perfetto"] = write_perfetto(result.run, out / "trace.pftrace", ranks)
    files["logs"] = Path(options.log_dir)
    return files


class Progress:
    """A line in virtual time while the job runs (on a terminal only), with the ranks' output above it."""

    def __init__(self, options: JobOptions) -> None:
        self._world_size = options.world_size
        self._started = time.monotonic()
        self._drawn_at = 0.0
        self._live = None
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._console = Console(stderr=True, highlight=False)
            self._live = Live("", console=self._console, transient=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Progress:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def write(self, text: str, stream: TextIO) -> None:
        """Text of a rank: as it is, above the progress line."""
        if self._live is None:
            stream.write(text)
            stream.flush()
            return
        self._live.update("", refresh=True)
        stream.write(text)
        stream.flush()
        self._drawn_at = 0.0

    def update(self, simulation: Simulation) -> None:
        """Redraw, at most a few times a second."""
        now = time.monotonic()
        if self._live is None or now - self._drawn_at < _REFRESH_S:
            return
        self._drawn_at = now
        states = [rank.state for rank in simulation.ranks]
        started = sum(state is not State.ABSENT for state in states)
        finished = sum(state is State.FINISHED for state in states)
        work = sum(len(rank.timeline.trace.start_ns) for rank in simulation.ranks)
        clock_ns = max(rank.timeline.clock_ns for rank in simulation.ranks)
        if not started:
            text = f"starting {self._world_size} rank{'s' if self._world_size > 1 else ''} ..."
        else:
            text = (
                f"virtual {clock_ns / 1e9:.3f} s · real {now - self._started:.1f} s · {work:,} kernels and collectives · "
                f"{finished} of {self._world_size} ranks done"
            )
        from rich.text import Text

        self._live.update(Text(text, style="dim", no_wrap=True, overflow="ellipsis"), refresh=True)
