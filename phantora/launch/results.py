"""The files of a run. One that cannot be written does not keep the others from being written."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phantora.errors import UserError
from phantora.launch.options import JobOptions
from phantora.trace.model import Run

_MAX_PERFETTO_RANKS = 16  # more make a trace that the UI opens slowly; --perfetto-ranks says which
INTERNAL_ERROR = 70  # sysexits.h, EX_SOFTWARE


@dataclass(slots=True)
class Written:
    """files: what -> path; failures: messages; code: exit code that they call for, 0 when there are none; summary: of the run,
    None if it could not be made."""

    files: dict[str, Path] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    code: int = 0
    summary: dict[str, Any] | None = None

    def fail(self, message: str, code: int) -> None:
        self.failures.append(message)
        self.code = max(self.code, code)


def write_results(run: Run, options: JobOptions) -> Written:
    """summary.json and the traces. A partial run is written as far as it was recorded."""
    out, written = Path(options.out), Written()
    _write(written, "summary", out / "summary.json", lambda: _summary(run, out, written))
    _write(written, "operators", out / "operators.jsonl", lambda: _operators(run, out))
    if options.chakra:
        _write(written, "chakra", out / "chakra", lambda: _chakra(run, out))
    if options.perfetto:
        _write(written, "perfetto", out / "trace.pftrace", lambda: _perfetto(run, out / "trace.pftrace", options))
    written.files["logs"] = Path(options.log_dir)
    return written


def _write(written: Written, what: str, path: Path, write: Callable[[], Path]) -> None:
    try:
        written.files[what] = write()
    except OSError as error:
        written.fail(f"cannot write {error.filename or path}: {error.strerror}", 1)
    except Exception as error:
        kind = str(error) if isinstance(error, UserError) else f"internal error\n{traceback.format_exc().rstrip()}"
        written.fail(f"cannot write {path}: {kind}", INTERNAL_ERROR)


def _summary(run: Run, out: Path, written: Written) -> Path:
    from phantora.report.summary import save_summary, summarize

    written.summary = summarize(run)
    return save_summary(written.summary, out)


def _operators(run: Run, out: Path) -> Path:
    from phantora.report.operators import write_operators

    return write_operators(run, out)


def _chakra(run: Run, out: Path) -> Path:
    from phantora.exporters.astra_config import write_astra_configs
    from phantora.exporters.chakra import write_chakra

    folder = write_chakra(run, out)
    write_astra_configs(run, folder)
    return folder


def _perfetto(run: Run, path: Path, options: JobOptions) -> Path:
    from phantora.exporters.perfetto import write_perfetto
    from phantora.report.link_use import link_counters

    ranks = options.perfetto_ranks
    if ranks is None:
        ranks = tuple(range(min(options.world_size, _MAX_PERFETTO_RANKS)))
    return write_perfetto(run, path, ranks, launches=options.perfetto_launches, counters=link_counters(run, ranks))
