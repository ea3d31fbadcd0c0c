"""What `phantora export` does: reads the Chakra traces of a run and writes them in a format that other viewers take."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phantora.errors import UserError
from phantora.exporters.chrome import write_chrome
from phantora.exporters.chrome_kineto import write_kineto
from phantora.exporters.perfetto import write_perfetto
from phantora.exporters.perfetto_rank import chosen_ranks
from phantora.importers.chakra import read
from phantora.report.link_use import link_counters

FORMATS = ("chrome", "kineto", "perfetto")
_NAMES = {"chrome": "trace.chrome.json.gz", "kineto": "kineto", "perfetto": "trace.pftrace"}


def export(source: Path, kind: str, out: Path | None, ranks: Sequence[int] | None, launches: bool) -> list[Path]:
    """Write `source` (a run, or a PREFIX of Chakra traces) and return the files.

    out: a file; for kineto a folder, or a name ending in .json or .json.gz, before which the rank's number is put. By
    default it lies in the folder of the run. UserError: no traces there, a rank that is not among them, a name that
    does not fit.
    """
    if out is None and not source.is_dir():
        raise UserError(f"--out is needed: {source} is no folder of a run into which to write")
    path = out if out is not None else source / _NAMES[kind]
    _check(kind, path)
    run, _ = read(source)
    if kind == "kineto":
        folder, name = (path.parent, path.name) if _is_json(path) else (path, "rank_.json.gz")
        return write_kineto(run, folder, ranks, name)
    counters = link_counters(run, [trace.rank for trace in chosen_ranks(run, ranks)])
    write = write_chrome if kind == "chrome" else write_perfetto
    return [write(run, path, ranks, launches=launches, counters=counters)]


def _check(kind: str, path: Path) -> None:
    if kind == "kineto" and path.is_file() and not _is_json(path):
        raise UserError(f"--out {path} is a file; kineto writes one file per rank into a folder")
    if kind != "kineto" and path.is_dir():
        raise UserError(f"--out {path} is a folder; {kind} writes one file")
    if kind == "perfetto" and _is_json(path):
        raise UserError(f"--out {path}: a Perfetto trace is no JSON; name it *.pftrace, or use --format chrome")


def _is_json(path: Path) -> bool:
    return path.name.endswith((".json", ".json.gz"))
