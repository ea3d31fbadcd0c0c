"""Kineto traces of one or several ranks (PyTorch's profiler, `export_chrome_trace`) as a Run: see docs/importers.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phantora.errors import UserError
from phantora.importers.kineto_absent import FAMILY, ranks_per_node, renumber, split, tell
from phantora.importers.kineto_clock import clock_offsets
from phantora.importers.kineto_events import KinetoFile
from phantora.importers.kineto_match import Matched, match
from phantora.importers.kineto_rank import BuiltRank, build_rank
from phantora.importers.kineto_rows import CLOCK_NS, SignatureTable
from phantora.importers.pytorch_et_file import EtFile
from phantora.importers.pytorch_et_link import link
from phantora.importers.report import ImportReport
from phantora.importers.trace_reader import read_traces
from phantora.trace.model import CollectiveInfo, GroupInfo, RankTrace, Run

_TIMES = (
    "issue_ns", "start_ns", "end_ns", "memory_ns", "wait_begin_ns", "wait_end_ns", "mark_ns",
)  # fmt: skip


def read(files: Sequence[str | Path], *, keep_cut: bool = False) -> tuple[Run, ImportReport]:
    """The run that these files tell of (Run.cluster is None). Execution traces among them add shapes and communicators.

    keep_cut: for who only looks at times. Ranks keep their numbers, and collectives of which parts are missing stay
    collectives; such a run cannot be replayed.
    UserError with file, line and reason for what is no Kineto trace.
    """
    report = ImportReport()
    kineto, et = read_traces(files, report)
    if not kineto:
        named = f"; {et[0].shown} is an execution trace (phantora import pytorch-et)" if et else ""
        raise UserError(f"no Kineto trace among the files{named}")
    return run_of(kineto, et, report, keep_cut), report


def run_of(files: list[KinetoFile], et: list[EtFile], report: ImportReport, keep_cut: bool = False) -> Run:
    """A Run of files that have been read; keep_cut as in `read`."""
    ranks = assign_ranks(files, report)
    world_size = max(max(ranks) + 1, *(file.world_size for file in files))
    link(files, ranks, et, report)
    table = SignatureTable()
    order = sorted(range(len(files)), key=lambda i: ranks[i])
    built = [build_rank(files[i], ranks[i], world_size, table, report) for i in order]
    gpus = max(len(file.devices) for file in files)
    report.gpu = next((name for file in files for name in file.devices if name), "")
    run = Run(
        command=["phantora", "import", "kineto", *(file.shown for file in files)],
        cluster=None,
        world_size=world_size if keep_cut else len(files),
        nproc_per_node=ranks_per_node(range(world_size) if keep_cut else sorted(ranks), gpus, report),
        source="kineto",
    )
    if not any(len(one.trace.issue_ns) for one in built):
        what = f"nothing to import: neither work of a device nor operators{_dropped(report)}"
        raise UserError(f"{files[0].shown}: {what}")
    run.ranks = [one.trace for one in built]
    matched = match({one.trace.rank: one.parts for one in built}, world_size, report)
    _common_clock(built, matched, report)
    if not keep_cut:
        matched, cut = split(matched, ranks)
        _cut_as_work(run, cut, table)
        tell(cut, ranks, "of their duration", report)
        matched = renumber(run.ranks, matched, world_size, report)
    run.signatures = table.signatures()
    add_collectives(run, matched, report)
    report.take("collectives", len(run.collectives))
    report.take("ranks", len(run.ranks))
    run.virtual_ns = max((max(trace.host_end_ns, max(trace.end_ns, default=0)) for trace in run.ranks), default=0)
    run.notes = report.as_notes()
    return run


def _dropped(report: ImportReport) -> str:
    """What there was and was left out, for the message that nothing is left."""
    found = [f"{counted.count} {what}" for what, counted in report.left_out.items()]
    return f" (left out: {'; '.join(found[:4])}{'; ...' if len(found) > 4 else ''})" if found else ""


def _cut_as_work(run: Run, cut: list[Matched], table: SignatureTable) -> None:
    traces = {trace.rank: trace for trace in run.ranks}
    for collective in cut:
        name = f"{collective.kind} of {len(collective.ranks)} ranks"
        for rank, part in sorted(collective.parts.items()):
            trace, row = traces[rank], part.row
            took = trace.end_ns[row] - trace.start_ns[row]
            trace.signature[row] = table.number(name, (), (), FAMILY, part.bytes, "", took)
            trace.comm_streams.setdefault(trace.stream[row], collective.group or "group")


def assign_ranks(files: Sequence[KinetoFile], report: ImportReport) -> list[int]:
    """The rank of each file: as it says, else the first that is free, in order of the files."""
    taken: dict[int, str] = {}
    for file in files:
        if file.rank in taken:
            raise UserError(f"{taken[file.rank]} and {file.shown} are both of rank {file.rank}")
        if file.rank >= 0:
            taken[file.rank] = file.shown
    ranks, free = [], 0
    for file in files:
        rank = file.rank
        if rank < 0:
            while free in taken:
                free += 1
            rank, taken[free] = free, file.shown
            if len(files) > 1:
                report.guess("files that do not say their rank: numbered in order", f"{file.shown}: rank {rank}")
        ranks.append(rank)
    return ranks


def _common_clock(built: list[BuiltRank], matched: list[Matched], report: ImportReport) -> None:
    """Times count from the first event of all ranks."""
    traces = {one.trace.rank: one.trace for one in built}
    offsets = clock_offsets(traces, matched, report)
    zero = min(one.begin_ns - offsets[one.trace.rank] for one in built if one.begin_ns is not None)
    for one in built:
        if one.begin_ns is None:
            report.doubt("files without anything to import", one.file.shown)
            continue
        try:
            _shift(one.trace, -zero - offsets[one.trace.rank])
        except OverflowError:
            raise UserError(
                f"{one.file.shown}: its times are more than centuries away from those of the other ranks"
            ) from None


def _shift(trace: RankTrace, by_ns: int) -> None:
    for name in _TIMES:
        column = getattr(trace, name)
        for row, value in enumerate(column):
            column[row] = value + by_ns
    trace.host_end_ns += by_ns


def add_collectives(run: Run, matched: list[Matched], report: ImportReport) -> None:
    """Number groups and collectives by content and time, and refer to them from the rows of communication."""
    traces = {trace.rank: trace for trace in run.ranks}
    infos = [(_info(collective, traces), collective) for collective in matched]
    for collective in matched:
        times = [
            (traces[rank].start_ns[part.row], traces[rank].end_ns[part.row]) for rank, part in collective.parts.items()
        ]
        if max(begin for begin, _ in times) > min(end for _, end in times) + CLOCK_NS:
            report.doubt("collectives of which one rank had ended before another began", collective.kind)
    groups = sorted({(collective.ranks, collective.group) for collective in matched})
    numbers = {group: number for number, group in enumerate(groups)}
    run.groups = [GroupInfo(name, ranks) for ranks, name in groups]
    for info, collective in infos:
        info.group = numbers[collective.ranks, collective.group]
    infos.sort(key=lambda pair: (pair[0].start_ns, pair[0].end_ns, pair[0].group, pair[0].kind, min(pair[1].parts)))
    run.collectives = [info for info, _ in infos]
    works: dict[tuple[int, int], list[int]] = {}
    for number, (_, collective) in enumerate(infos):
        for rank, part in collective.parts.items():
            works.setdefault((rank, part.row), []).append(number)
    for trace in run.ranks:
        rows = [row for row, signature in enumerate(trace.signature) if signature < 0]
        trace.work_collectives = [tuple(works[trace.rank, row]) for row in rows]
        for slot, row in enumerate(rows):
            trace.signature[row] = -1 - slot
            group = run.groups[run.collectives[trace.work_collectives[slot][0]].group].name
            trace.comm_streams.setdefault(trace.stream[row], group or "group")


def _info(collective: Matched, traces: dict[int, RankTrace]) -> CollectiveInfo:
    splits = [collective.parts[rank].splits if rank in collective.parts else () for rank in collective.ranks]
    is_uneven = all(splits) and len({size for row in splits for size in row}) > 1
    starts = [traces[rank].start_ns[part.row] for rank, part in collective.parts.items()]
    ends = [traces[rank].end_ns[part.row] for rank, part in collective.parts.items()]
    first = collective.parts[min(collective.parts)]
    return CollectiveInfo(
        kind=collective.kind,
        group=-1,
        ranks=collective.ranks,
        bytes=collective.bytes,
        dtype=first.dtype,
        root=first.root if first.root < len(collective.ranks) else 0,
        start_ns=max(starts),
        end_ns=max(*ends, max(starts)) if ends else -1,
        split_bytes=tuple(splits) if is_uneven else None,
    )
