"""A run against a measured trace of the same job (Kineto files of one or several ranks), per step where both mark
steps.

Kernels are compared by operator and, in sums, by the family that the simulated run puts an operator into; communication
by class (kind, group size, size), from the moment when the last member had come, so that one rank's lateness is not the
network's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from phantora.compare.result import Comparison, Line, class_name
from phantora.importers.report import ImportReport
from phantora.report.breakdown import (
    OPTIMIZER_MARK,
    Breakdown,
    rank_breakdown,
    rank_end_ns,
    step_breakdowns,
    step_windows,
)
from phantora.trace.columns import as_int64, finished_rows
from phantora.trace.model import RankTrace, Run

_SAME_FAMILY = {"normalization": "norm"}  # names that importers and the price table have for one thing
_COPY_NAMES = (
    ("Memcpy HtoD", "memcpy_h2d"),
    ("Memcpy DtoH", "memcpy_d2h"),
    ("Memcpy DtoD", "memcpy_d2d"),
    ("Memcpy PtoP", "memcpy_p2p"),
    ("Memset", "memset"),
)
# Families of measured operators of which neither the simulated run nor the kernel's name says one (cuDNN's, say).
_FAMILY_WORDS = (
    ("attention", "attention"),
    ("conv", "conv"),
    ("norm", "norm"),
    ("softmax", "softmax"),
    ("mm", "gemm"),
    ("linear", "gemm"),
)
_PARTS = (
    ("duration", lambda b: b.end_ns - b.begin_ns),
    ("computing", lambda b: b.compute_ns),
    ("communication in the open", lambda b: b.exposed_communication_ns),
    ("idle", lambda b: b.idle_ns),
)


@dataclass(slots=True)
class _Sums:
    """Mean times of one side per rank and step (or run); counts likewise. breakdowns: what adds up to num_steps."""

    operators: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (count, ns)
    families: dict[str, str] = field(default_factory=dict)  # operator -> family
    classes: dict[str, tuple[float, float]] = field(default_factory=dict)
    breakdowns: list[Breakdown] = field(default_factory=list)
    num_steps: int = 0


@dataclass(frozen=True, slots=True)
class _Steps:
    """The parts of a rank's time that are compared, and how many steps they hold together (0: no steps are marked)."""

    windows: list[tuple[int, int]]
    breakdowns: list[Breakdown]
    count: int


def compare_kineto(run: Run, measured: Run, report: ImportReport) -> Comparison:
    """report: of the import of `measured`; its doubts are among the reasons."""
    by_step = all(_has_steps(side) for side in (run, measured))
    ours, theirs = _sums(run, by_step), _sums(measured, by_step)
    lines = [*_breakdown_lines(ours, theirs), *_family_lines(ours, theirs), *_class_lines(ours, theirs)]
    return Comparison(
        title=f"{' '.join(run.command)}\n{_ranks(run)} simulated, against a trace of {_ranks(measured)}",
        ours="simulated", theirs="measured", per="step and rank" if by_step else "rank", lines=tuple(lines),
        reasons=_reasons(run, measured, by_step, report), unmatched=tuple(_unmatched(ours, theirs)),
    )  # fmt: skip


def _ranks(run: Run) -> str:
    return "1 rank" if len(run.ranks) == 1 else f"{len(run.ranks)} ranks"


def _has_steps(run: Run) -> bool:
    return bool(run.ranks) and all(_steps(trace).count for trace in run.ranks)


def _steps(trace: RankTrace) -> _Steps:
    """Marked steps; else the whole recording, of as many steps as the optimizer makes in it: profiles are often of
    one."""
    windows = [(begin, end) for _, begin, end in step_windows(trace)]
    if windows:
        return _Steps(windows, step_breakdowns(trace), len(windows))
    return _Steps([(0, rank_end_ns(trace) + 1)], [rank_breakdown(trace)], trace.mark_name.count(OPTIMIZER_MARK))


def _sums(run: Run, by_step: bool) -> _Sums:
    sums = _Sums()
    names = [_operator(signature.name) for signature in run.signatures]
    for name, signature in zip(names, run.signatures):
        sums.families.setdefault(name, _SAME_FAMILY.get(signature.family, signature.family or "other"))
    for trace in run.ranks:
        whole = _Steps([(0, rank_end_ns(trace) + 1)], [rank_breakdown(trace)], 1)
        steps = _steps(trace) if by_step else whole
        sums.num_steps += steps.count
        sums.breakdowns += steps.breakdowns
        _add_rank(sums, run, trace, names, steps.windows)
    for table in (sums.operators, sums.classes):
        for key, (count, ns) in table.items():
            table[key] = (count / max(sums.num_steps, 1), ns / max(sums.num_steps, 1))
    return sums


def _add_rank(
    sums: _Sums, run: Run, trace: RankTrace, names: Sequence[str], windows: Sequence[tuple[int, int]]
) -> None:
    rows = finished_rows(trace)
    start, end = as_int64(trace.start_ns)[rows], as_int64(trace.end_ns)[rows]
    inside = np.zeros(len(rows), bool)
    for window_begin, window_end in windows:
        inside |= (start >= window_begin) & (start < window_end)
    for row, begin_ns, end_ns in zip(rows[inside].tolist(), start[inside].tolist(), end[inside].tolist()):
        number = trace.signature[row]
        if number >= 0:
            _add(sums.operators, names[number], end_ns - begin_ns)
            continue
        infos = [run.collectives[c] for c in trace.work_collectives[-1 - number]]
        if infos:
            moving_since = min(max(begin_ns, max(info.start_ns for info in infos)), end_ns)
            size = sum(info.bytes for info in infos)
            _add(sums.classes, class_name(infos[0].kind, len(infos[0].ranks), size), end_ns - moving_since)


def _add(table: dict[str, tuple[float, float]], key: str, ns: float) -> None:
    count, total = table.get(key, (0.0, 0.0))
    table[key] = (count + 1, total + ns)


def _operator(name: str) -> str:
    """One name for the same copy; operators keep theirs."""
    return next((ours for theirs, ours in _COPY_NAMES if name.startswith(theirs)), name)


def _breakdown_lines(ours: _Sums, theirs: _Sums) -> list[Line]:
    return [
        Line(section="Time of a rank", name=name, ours_ns=_mean(ours, part), theirs_ns=_mean(theirs, part))
        for name, part in _PARTS
    ]


def _mean(sums: _Sums, part: object) -> float:
    return sum(part(b) for b in sums.breakdowns) / max(sums.num_steps, 1)  # type: ignore[operator]


def _family_lines(ours: _Sums, theirs: _Sums) -> list[Line]:
    """An operator that both have is of the family that the simulated run says."""
    guessed = {name: _guessed_family(name) for name, family in theirs.families.items() if family == "other"}
    families = {**theirs.families, **guessed, **ours.families}
    totals: list[dict[str, tuple[float, float]]] = []
    for side in (ours, theirs):
        table: dict[str, tuple[float, float]] = {}
        for name, (count, ns) in side.operators.items():
            before = table.get(families[name], (0.0, 0.0))
            table[families[name]] = (before[0] + count, before[1] + ns)
        totals.append(table)
    return _table("Kernels, by family", "all kernels", *totals)


def _guessed_family(operator: str) -> str:
    return next((family for word, family in _FAMILY_WORDS if word in operator), "other")


def _class_lines(ours: _Sums, theirs: _Sums) -> list[Line]:
    return _table("Communication, from the last arrival", "all communication", ours.classes, theirs.classes)


def _table(
    section: str, total: str, ours: dict[str, tuple[float, float]], theirs: dict[str, tuple[float, float]]
) -> list[Line]:  # fmt: skip
    none = (0.0, 0.0)
    lines = [
        Line(
            section=section, name=name, ours_ns=ours.get(name, none)[1], theirs_ns=theirs.get(name, none)[1],
            count=ours.get(name, none)[0],
        )
        for name in sorted(ours.keys() | theirs.keys())
    ]  # fmt: skip
    lines.sort(key=lambda line: -max(line.ours_ns, line.theirs_ns))
    if not lines:
        return []
    sums = (
        sum(line.ours_ns for line in lines),
        sum(line.theirs_ns for line in lines),
        sum(line.count for line in lines),
    )
    return [*lines, Line(section=section, name=total, ours_ns=sums[0], theirs_ns=sums[1], count=sums[2])]


def _unmatched(ours: _Sums, theirs: _Sums) -> list[Line]:
    """Operators that one side alone ran."""
    found = []
    for name in sorted(ours.operators.keys() ^ theirs.operators.keys()):
        is_ours = name in ours.operators
        count, ns = (ours if is_ours else theirs).operators[name]
        found.append(
            Line(
                section="Only on one side",
                name=name,
                ours_ns=ns if is_ours else 0,
                theirs_ns=0 if is_ours else ns,
                count=count,
            )
        )
    return found


def _reasons(run: Run, measured: Run, by_step: bool, report: ImportReport) -> tuple[str, ...]:
    found = []
    if not by_step:
        bare = [name for name, side in (("simulated run", run), ("trace", measured)) if not _has_steps(side)]
        found.append(
            f"no steps are marked in the {' and the '.join(bare)}: whole recordings are compared, however many steps "
            "they hold"
        )
    elif not all(step_windows(trace) for trace in measured.ranks):
        found.append(
            "the trace marks no step but the optimizer's: all of it, also what lies before and after, is taken for its "
            "steps"
        )
    if by_step:
        found.append(
            "the first simulated step is left out where steps are told apart by the optimizer alone; profilers skip "
            "warm-up too"
        )
    if run.world_size != measured.world_size:
        simulated, traced = (f"{side.world_size} rank{'s' if side.world_size != 1 else ''}" for side in (run, measured))
        found.insert(
            0, f"not the same job: {simulated} simulated, a trace of {traced}; collectives of other groups do not match"
        )
    if len(measured.ranks) < measured.world_size:
        found.append(
            f"the trace has {len(measured.ranks)} of {measured.world_size} ranks: when the others came to a collective "
            "is not known, so waiting for them counts as communication"
        )
    found.append("a measured operator may launch several kernels: its time is their sum")
    found.append(
        "profiling slows the host: a measured duration, and idle time in it, are longer than without a profiler"
    )
    found += [f"import: {note}" for note in report.as_notes()]
    return tuple(found)
