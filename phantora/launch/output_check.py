"""Before a run starts: can its results and logs be written where they are wanted? UserError of one line when not."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from phantora.errors import UserError
from phantora.launch.options import COMMAND, JobOptions
from phantora.launch.texts import printable


def prepare_output(options: JobOptions) -> None:
    """Make the folders of a run."""
    out = Path(options.out)
    _make_folder("--out", out)
    _check_file(out / "summary.json")
    if options.perfetto:
        _check_file(out / "trace.pftrace")
    if options.chakra and (out / "chakra").exists():
        _make_folder("--out", out / "chakra")
    option = "--out" if Path(options.log_dir) == out / "logs" else "--log-dir"
    for rank in (COMMAND,) if options.launch_command else range(options.world_size):
        _make_folder(option, options.rank_log(rank, "stdout").parent)
        for stream in ("stdout", "stderr", "stacks"):
            _check_file(options.rank_log(rank, stream))


def _make_folder(option: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass  # permissions do not tell of a read-only or full disk
    except FileExistsError:
        raise UserError(f"{option}: {printable(str(folder))} is a file, not a folder") from None
    except OSError as error:
        raise UserError(f"{option}: cannot write to {printable(str(folder))}: {error.strerror}") from None


def _check_file(path: Path) -> None:
    """What is to be written there may replace a file, nothing else."""
    try:
        if path.is_dir():
            raise UserError(f"cannot write {printable(str(path))}: it is a folder")
        if path.exists() and not path.is_file():
            raise UserError(f"cannot write {printable(str(path))}: it is not a regular file")
        if path.is_file() and not os.access(path, os.W_OK):
            raise UserError(f"cannot write {printable(str(path))}: Permission denied")
    except OSError as error:
        raise UserError(f"cannot write {printable(str(path))}: {error.strerror}") from None
