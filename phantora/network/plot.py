"""A plot of bus bandwidth over size as an SVG file, without a plotting library."""

from __future__ import annotations

import math

from phantora.network.measured import Measurement
from phantora.network.nccl_tests import Row

_FONT = 'font-family="sans-serif" font-size="12"'
_LEGEND = "size of the message (line: simulated, circles: measured); bus bandwidth in GB/s"
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 420, 60, 40, 20, 50


def bandwidth_svg(title: str, rows: list[Row], measured: list[Measurement], busbw_factor: float) -> str:
    """The curve of `rows`, and points for measured sizes. Sizes on a logarithmic axis."""
    curve = [(row.size_bytes, row.busbw_gb_s) for row in rows]
    points = [(m.size_bytes, busbw_factor * m.size_bytes / m.time_us / 1000) for m in measured]
    sizes = [size for size, _ in curve + points]
    low, high = math.log2(min(sizes)), max(math.log2(max(sizes)), math.log2(min(sizes)) + 1)
    top = _round_up(max(rate for _, rate in curve + points))

    def place(size: float, rate: float) -> tuple[float, float]:
        x = _LEFT + (math.log2(size) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - rate / top * (_HEIGHT - _TOP - _BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{_escape(title)}</text>',
    ]
    lines += [_horizontal(place(2**low, top * k / 5)[1], f"{top * k / 5:g}") for k in range(6)]
    lines += [_vertical(place(2.0**k, 0)[0], _size(2**k)) for k in range(math.ceil(low), math.floor(high) + 1, 3)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve))
    lines.append(f'<polyline points="{path}" fill="none" stroke="#1f5fa8" stroke-width="2"/>')
    for point in points:
        x, y = place(*point)
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="none" stroke="#c0392b" stroke-width="1.5"/>')
    lines.append(f'<text x="{_LEFT}" y="{_HEIGHT - 10}">{_LEGEND}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _horizontal(y: float, label: str) -> str:
    line = f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
    return line + f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'


def _vertical(x: float, label: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{label}</text>'


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, ... above it."""
    magnitude = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(step * magnitude for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * magnitude >= value)


def _size(num_bytes: int) -> str:
    for unit, name in ((2**30, "G"), (2**20, "M"), (2**10, "K")):
        if num_bytes >= unit:
            return f"{num_bytes // unit}{name}"
    return str(num_bytes)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")
