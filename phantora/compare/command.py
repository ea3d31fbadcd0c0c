"""What `phantora compare` does: reads the run, compares it, prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from phantora.compare.result import Comparison, as_json, as_text
from phantora.errors import UserError
from phantora.importers.chakra import read
from phantora.trace.model import Run

BUILTIN = "builtin"


def compare(
    source: Path, astra_sim: str | None, kineto: Sequence[Path], *, aware: bool, limit_s: float, html: Path | None,
    is_json: bool, say: Callable[[str], None],
) -> None:  # fmt: skip
    """Print the comparison of a run with ASTRA-sim (None or 'builtin': our copy of its semantics), or with a measured
    trace.

    UserError: no run, files that cannot be read, ASTRA-sim fails or deadlocks.
    """
    if kineto and astra_sim is not None:
        raise UserError("--kineto and --astra-sim are two comparisons: one at a time")
    if kineto and aware:
        raise UserError("--congestion-aware is about ASTRA-sim's network; with --kineto nothing is simulated")
    run, _ = read(source)
    comparison = _with_kineto(run, kineto) if kineto else _with_astra(run, source, astra_sim, aware, limit_s)
    say(as_json(comparison) if is_json else as_text(comparison))
    if html is not None:
        from phantora.compare.page import write_page

        path = write_page(comparison, html)
        if not is_json:
            say(f"\npage      {path}")


def _with_kineto(run: Run, files: Sequence[Path]) -> Comparison:
    from phantora.compare.kineto import compare_kineto
    from phantora.importers.kineto import read as read_kineto

    measured, report = read_kineto(files, keep_cut=True)
    return compare_kineto(run, measured, report)


def _with_astra(run: Run, source: Path, binary: str | None, aware: bool, limit_s: float) -> Comparison:
    from phantora.compare.astra import AstraSim, compare_astra

    chosen = None if binary in (None, BUILTIN) else Path(binary)
    if chosen is not None and aware:
        raise UserError("--congestion-aware is for our copy of the semantics; ASTRA-sim has a binary for each network")
    return compare_astra(run, _folder(source), AstraSim.of(chosen, aware, limit_s))


def _folder(source: Path) -> Path:
    """The folder of the traces of a run, which has to hold all of it."""
    for folder in (source / "chakra", source):
        if (folder / "trace.0.et").is_file():
            return folder
    raise UserError(f"{source} is no folder of a run with chakra/trace.RANK.et")
