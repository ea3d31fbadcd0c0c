"""Chakra traces to a Run: our own recordings with nothing lost, those of any other tool as far as they say what
happened.

Other tools: mlcommons' PyTorch converter (nodes of CPU and GPU, ctrl_deps, pg_name), ASTRA-sim's examples and
generators (comm_type, comm_size, COMM_SEND and COMM_RECV), the feeder's test traces. docs/replay.md says what each
attribute becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from phantora.errors import UserError
from phantora.importers.chakra_archive import is_archive, unpacked
from phantora.importers.chakra_file import check_ranks, find_chakra, read_files
from phantora.importers.chakra_groups import read_groups
from phantora.importers.chakra_matching import Matching
from phantora.importers.chakra_rank import RankGraph, Signatures
from phantora.importers.chakra_recorded import read_recorded
from phantora.importers.report import ImportReport
from phantora.trace.model import Run


def read(where: Path | str | Iterable[Path | str], comm_groups: Path | str | None = None) -> tuple[Run, ImportReport]:
    """The run in the files `where`: a PREFIX of PREFIX.RANK.et, their folder, that of a run, a tar archive of them, or
    the files in order of ranks.

    comm_groups: ASTRA-sim's JSON of communicator groups; without it a comm_groups.json beside the traces counts.
    UserError: no files, a rank is missing, a file is malformed, data dependencies form a cycle, groups that cannot be.
    """
    report = ImportReport()
    where = where if isinstance(where, (str, Path)) else list(where)
    archive = _archive(where)
    if archive is None:
        return _read(_paths(where), comm_groups, report), report
    with unpacked(archive, report) as folder:
        run = _read(_paths(folder), comm_groups, report)
        report.files = [f"{archive}!{Path(name).name}" for name in report.files]
        if run.source == "chakra":
            run.command = [str(archive)]
    return run, report


def _archive(where: Path | str | list[Path | str]) -> Path | None:
    files = where if isinstance(where, list) else [where]
    archives = [Path(file) for file in files if is_archive(Path(file))]
    if archives and len(files) > 1:
        raise UserError(f"{archives[0]}: an archive of Chakra traces holds all ranks; name it alone")
    return archives[0] if archives else None


def _read(paths: Sequence[Path], comm_groups: Path | str | None, report: ImportReport) -> Run:
    report.files = [str(path) for path in paths]
    run = read_recorded(paths)
    if run is not None:
        report.note("recorded by phantora: read as it was")
        report.take("ranks", len(run.ranks))
        report.take("kernels and communications", sum(len(trace.signature) for trace in run.ranks))
        report.take("collectives", len(run.collectives))
        return run
    return _foreign(paths, comm_groups, report)


def _paths(where: Path | str | Iterable[Path | str]) -> list[Path]:
    if not isinstance(where, (str, Path)):
        return [Path(path) for path in where]
    found = find_chakra(where)
    return [found[rank] for rank in check_ranks(where, found, max(found) + 1)]


def _foreign(paths: Sequence[Path], comm_groups: Path | str | None, report: ImportReport) -> Run:
    files = read_files(paths)
    run = Run([str(paths[0])], "unknown cluster", len(files), 0, source="chakra")
    groups, is_given = read_groups(comm_groups, files, report)
    signatures = Signatures()
    graphs = [RankGraph(rank, file, signatures, report) for rank, file in enumerate(files)]
    if not any(graph.rows for graph in graphs):
        left = "; ".join(f"{counted.count} {what}" for what, counted in report.left_out.items())
        raise UserError(f"{paths[0]}: nothing to import: no node is work{f' (left out: {left})' if left else ''}")
    matching = Matching(len(files), groups, is_given, report)
    for graph in graphs:
        matching.add(graph)
    matching.match(run, graphs)
    run.ranks = [graph.trace(matching.numbers) for graph in graphs]
    run.signatures = signatures.infos
    run.notes = report.as_notes()
    return run
