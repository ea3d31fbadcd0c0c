"""What a comparison says, and its forms: text for a terminal, JSON for programs (page.py: HTML)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phantora.report.units import bytes_text, time_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that both sides have. count: how many of them in the run (or in a step, which may be a fraction)."""

    section: str
    name: str
    ours_ns: float
    theirs_ns: float
    count: float = 0.0

    @property
    def difference(self) -> float | None:
        """Theirs over ours, less 1; None where there is nothing of ours."""
        return self.theirs_ns / self.ours_ns - 1 if self.ours_ns else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """title: what is compared; ours, theirs: names of the sides; per: 'run' or 'step', what the times are of.

    reasons: why the sides may differ, those that apply here; unmatched: what only one side has, with its time.
    """

    title: str
    ours: str
    theirs: str
    per: str
    lines: tuple[Line, ...]
    reasons: tuple[str, ...] = ()
    unmatched: tuple[Line, ...] = field(default=())


def size_bucket(num_bytes: int) -> str:
    """'0 B', '1 KiB - 2 KiB', ...: powers of two."""
    if num_bytes < 1:
        return "0 B"
    low = 1 << num_bytes.bit_length() - 1
    return f"{_short(low)} - {_short(2 * low)}"


def _short(num_bytes: int) -> str:
    number, unit = bytes_text(num_bytes).split()
    return f"{float(number):g} {unit}"


def class_name(kind: str, group_size: int, num_bytes: int) -> str:
    """'all_reduce, 8 ranks, 1 MiB - 2 MiB'."""
    return f"{kind}, {group_size} rank{'s' if group_size != 1 else ''}, {size_bucket(num_bytes)}"


def sections(comparison: Comparison) -> dict[str, list[Line]]:
    """The lines by section, in order."""
    found: dict[str, list[Line]] = {}
    for line in comparison.lines:
        found.setdefault(line.section, []).append(line)
    return found


def as_text(comparison: Comparison, most_unmatched: int = 12) -> str:
    """For a terminal."""
    out = [comparison.title, f"times per {comparison.per}"]
    width = max(30, *(max(len(line.name), len(line.section)) for line in comparison.lines))
    for section, lines in sections(comparison).items():
        head = f"{section:{width}} {'count':>9} {comparison.ours:>14} {comparison.theirs:>14} {'difference':>11}"
        out += ["", head, *(_row(line, width) for line in lines)]
    if comparison.unmatched:
        out += ["", "Only on one side"]
        longest = sorted(comparison.unmatched, key=lambda line: -max(line.ours_ns, line.theirs_ns))
        for line in longest[:most_unmatched]:
            side, ns = (comparison.ours, line.ours_ns) if line.ours_ns else (comparison.theirs, line.theirs_ns)
            out.append(f"  {line.name}: {side} {time_text(round(ns))}")
        if len(longest) > most_unmatched:
            out.append(f"  and {len(longest) - most_unmatched} more (--json lists all)")
    if comparison.reasons:
        out += ["", "Why they may differ", *(f"  - {reason}" for reason in comparison.reasons)]
    return "\n".join(out)


def _row(line: Line, width: int) -> str:
    count = f"{line.count:,.1f}".removesuffix(".0") if line.count else ""
    times = f"{time_text(round(line.ours_ns)):>14} {time_text(round(line.theirs_ns)):>14}"
    return f"{line.name:{width}} {count:>9} {times} {difference_text(line):>11}"


def difference_text(line: Line) -> str:
    """'+3.1 %', or '-' without anything to compare with."""
    return "-" if line.difference is None else f"{100 * line.difference:+.1f} %"


def _plain(count: float) -> float | int:
    """A count in a step may be a fraction; others are integers."""
    return int(count) if float(count).is_integer() else count


def as_json(comparison: Comparison) -> str:
    """For programs; times in ns, differences as fractions."""

    def plain(lines: Sequence[Line]) -> list[dict[str, Any]]:
        return [{**asdict(line), "count": _plain(line.count), "difference": line.difference} for line in lines]

    title = "; ".join(comparison.title.splitlines())
    document = {**asdict(comparison), "title": title}
    document |= {"lines": plain(comparison.lines), "unmatched": plain(comparison.unmatched)}
    return json.dumps(document, indent=2)
