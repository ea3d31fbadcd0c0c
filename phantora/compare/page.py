"""A comparison as one self-contained HTML page: tables, and bars drawn as plain SVG.

Bars of two lengths need no plotting library: matplotlib and plotly would be tens of megabytes, and scripts from
elsewhere would make a page that does not open without a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from phantora.compare.result import Comparison, Line, difference_text, sections
from phantora.report.units import time_text

_OURS, _THEIRS = "#2563a8", "#e08a1e"  # told apart in greys and by colour-blind eyes too
_WIDTH, _LABELS, _BAR, _GAP = 920, 330, 11, 10
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c2733; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .2rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; } tr { border-bottom: 1px solid #dde3ea; } th { font-weight: 600; }
svg text { font: 12px system-ui, sans-serif; fill: #1c2733; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .3em; }
"""


def write_page(comparison: Comparison, path: Path) -> Path:
    """Write the page and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(comparison), encoding="utf-8")
    return path


def page(comparison: Comparison) -> str:
    """The page."""
    head, _, rest = comparison.title.partition("\n")
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(head)}</title><style>{_STYLE}</style>',
        f"<h1>{escape(head)}</h1><p>{escape(rest)}; times per {escape(comparison.per)}. "
        f'<span class="key" style="background:{_OURS}"></span>{escape(comparison.ours)} '
        f'<span class="key" style="background:{_THEIRS}"></span>{escape(comparison.theirs)}</p>',
    ]
    for section, lines in sections(comparison).items():
        parts += [f"<h2>{escape(section)}</h2>", bars(lines), _table(comparison, lines)]
    if comparison.unmatched:
        longest = sorted(comparison.unmatched, key=lambda line: -max(line.ours_ns, line.theirs_ns))
        parts += ["<h2>Only on one side</h2>", _table(comparison, longest)]
    if comparison.reasons:
        parts += [
            "<h2>Why they may differ</h2><ul>",
            *(f"<li>{escape(text)}</li>" for text in comparison.reasons),
            "</ul>",
        ]
    return "\n".join([*parts, "</html>\n"])


def bars(lines: Sequence[Line]) -> str:
    """Two bars for each line, from one zero."""
    longest = max((max(line.ours_ns, line.theirs_ns) for line in lines), default=0) or 1
    step, room = 2 * _BAR + _GAP, _WIDTH - _LABELS - 80
    out = [f'<svg viewBox="0 0 {_WIDTH} {step * len(lines)}" width="100%" role="img">']
    for i, line in enumerate(lines):
        top = i * step + _GAP // 2
        out.append(
            f'<text x="{_LABELS - 8}" y="{top + _BAR + 4}" text-anchor="end">{escape(_fitted(line.name))}</text>'
        )
        for offset, ns, colour in ((0, line.ours_ns, _OURS), (_BAR, line.theirs_ns, _THEIRS)):
            length = room * ns / longest
            out.append(
                f'<rect x="{_LABELS}" y="{top + offset}" width="{length:.1f}" height="{_BAR - 1}" fill="{colour}"/>'
            )
        end = _LABELS + room * max(line.ours_ns, line.theirs_ns) / longest
        out.append(f'<text x="{end + 6:.1f}" y="{top + _BAR + 4}">{escape(difference_text(line))}</text>')
    return "\n".join([*out, "</svg>"])


def _fitted(name: str, most: int = 48) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."


def _table(comparison: Comparison, lines: Sequence[Line]) -> str:
    titles = ("", "count", comparison.ours, comparison.theirs, "difference")
    head = "<tr>" + "".join(f"<th>{escape(title)}</th>" for title in titles) + "</tr>"
    rows = []
    for line in lines:
        count = f"{line.count:,.1f}".removesuffix(".0") if line.count else ""
        cells = (
            escape(line.name),
            count,
            time_text(round(line.ours_ns)),
            time_text(round(line.theirs_ns)),
            difference_text(line),
        )
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join(["<table>", head, *rows, "</table>"])
