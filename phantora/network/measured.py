"""Measured times to set beside simulated ones: CSV files of nccl-tests results."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from phantora.errors import UserError, nearest
from phantora.network.nccl_tests import MAX_BYTES, Row

MAX_ROWS = 10_000
_LEAST, _MOST = 1e-9, 1e18
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
    names, rows = _read(path)
    size_name = next((name for name in _SIZE_NAMES if name in names), None)
    if size_name is None:
        raise UserError(f"{path}: has no column bytes")
    value_name = _value_column(path, column, [n for n in names if n not in (size_name, "system", "gpus")])
    found = []
    for line, row in rows:
        if row.get("system", cluster) != cluster or row.get("gpus", str(num_ranks)) != str(num_ranks):
            continue
        size, value = _number(path, line, row, size_name), _number(path, line, row, value_name)
        if size != int(size) or size > MAX_BYTES:
            raise UserError(f"{path}:{line}: {size_name} {row[size_name]!r}: must be whole and at most {MAX_BYTES}")
        time_us = value if value_name == "time_us" else busbw_factor * size / value / 1000
        found.append(Measurement(size_bytes=int(size), time_us=time_us))
    if not found:
        raise UserError(f"{path}: has no rows for {num_ranks} GPUs of {cluster}")
    return found


def _read(path: str) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """(names of the columns, (line, row) of each row that is not empty). UserError when it is no such file."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(line for line in file if not line.startswith("#"))
            rows = [(reader.line_num, row) for row, _ in zip(reader, range(MAX_ROWS + 1))]
            names = list(reader.fieldnames or ())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    except csv.Error as error:
        raise UserError(f"{path}: not a CSV file ({error})") from None
    if len(rows) > MAX_ROWS:
        raise UserError(f"{path}: has more than {MAX_ROWS} rows")
    return names, rows


def _number(path: str, line: int, row: dict[str, str], name: str) -> float:
    """A finite number greater than 0 in the column `name`."""
    text = row.get(name)
    if text is None:
        raise UserError(f"{path}:{line}: has no {name}")
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{path}:{line}: {name} {text[:60]!r}: not a number") from None
    if not (math.isfinite(value) and _LEAST <= value <= _MOST):
        raise UserError(f"{path}:{line}: {name} {text[:60]!r}: must be greater than 0 and finite")
    return value


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
