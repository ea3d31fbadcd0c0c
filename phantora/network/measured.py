"""Measured times to set beside simulated ones: CSV files of nccl-tests results."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from phantora.errors import UserError, nearest
from phantora.network.nccl_tests import Row

_SIZE_NAMES = ("bytes", "size", "size_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured size."""

    size_bytes: int
    time_us: float


def read_measurements(
    path: str, column: str | None, cluster: str, num_ranks: int, busbw_factor: float
) -> list[Measurement]:
    """Rows of a CSV file with a column bytes (or size) and one of times ('time_us') or of bus bandwidths in GB/s (any
    other name). With columns `system` and `gpus` only the rows of this cluster and number of ranks."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    names = list(rows[0]) if rows else []
    size_name = next((name for name in _SIZE_NAMES if name in names), None)
    if size_name is None:
        raise UserError(f"{path}: has no column bytes")
    value_name = _value_column(path, column, [n for n in names if n not in (size_name, "system", "gpus")])
    found = []
    for line, row in enumerate(rows, start=2):
        if row.get("system", cluster) != cluster or row.get("gpus", str(num_ranks)) != str(num_ranks):
            continue
        try:
            size, value = int(row[size_name]), float(row[value_name])
        except ValueError:
            raise UserError(f"{path}:{line}: {row[size_name]!r}, {row[value_name]!r}: not numbers") from None
        time_us = value if value_name == "time_us" else busbw_factor * size / value / 1000
        found.append(Measurement(size_bytes=size, time_us=time_us))
    if not found:
        raise UserError(f"{path}: has no rows for {num_ranks} GPUs of {cluster}")
    return found


def _value_column(path: str, column: str | None, names: list[str]) -> str:
    if column is not None:
        if column not in names:
            raise UserError(f"{path}: has no column {column!r}{nearest(column, names)}")
        return column
    if "time_us" in names:
        return "time_us"
    if len(names) != 1:
        raise UserError(f"{path}: say which column with --column ({', '.join(names)})")
    return names[0]


def table(rows: list[Row], measured: list[Measurement], heading: list[str]) -> str:
    """nccl-tests' columns and the algorithm; with measurements, these and the error of each size."""
    times = {measurement.size_bytes: measurement.time_us for measurement in measured}
    lines = [f"# {line}" for line in heading]
    head = f"#{'size':>13}{'count':>14}{'type':>10}{'time':>11}{'algbw':>9}{'busbw':>9}  algorithm"
    unit = f"#{'(B)':>13}{'(elements)':>14}{'':>10}{'(us)':>11}{'(GB/s)':>9}{'(GB/s)':>9}"
    if measured:
        head, unit = head.ljust(92) + f"{'measured':>11}{'error':>9}", unit.ljust(92) + f"{'(us)':>11}"
    lines += [head, unit]
    for row in rows:
        name = f"{row.algorithm}/{row.protocol}" if row.protocol else row.algorithm
        line = f" {row.size_bytes:>13}{row.count:>14}{row.dtype:>10}{_digits(row.time_us):>11}"
        line += f"{row.algbw_gb_s:>9.2f}{row.busbw_gb_s:>9.2f}  {name}"
        if row.size_bytes in times:
            time_us = times[row.size_bytes]
            line = line.ljust(92) + f"{_digits(time_us):>11}{row.time_us / time_us - 1:>+9.1%}"
        lines.append(line)
    lines.append(f"# Avg bus bandwidth    : {sum(row.busbw_gb_s for row in rows) / len(rows):.4f}")
    errors = [abs(row.time_us / times[row.size_bytes] - 1) for row in rows if row.size_bytes in times]
    if errors:
        mean, most = sum(errors) / len(errors), max(errors)
        lines.append(f"# Error of time        : mean {mean:.1%}, largest {most:.1%}, {len(errors)} sizes")
    return "\n".join(lines)


def _digits(time_us: float) -> str:
    return f"{time_us:.2f}" if time_us < 1000 else f"{time_us:.1f}" if time_us < 10_000 else f"{time_us:.0f}"
