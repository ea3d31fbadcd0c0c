"""`phantora price`: what operators described in a file cost on a cluster's GPU, and the error where `us` is given.

A benchmark launches one operator again and again, which lowers the clock under long 16-bit products, and its inputs are
cold; prices inside a run are for the mixed load and the warm cache of a step. Here the former is wanted
(Pricer.repeated_ns).
"""

from __future__ import annotations

import gzip
import json
import statistics
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phantora.compute.call import OpCall
from phantora.compute.described import calls_of
from phantora.compute.pricer import Pricer
from phantora.errors import UserError

_RANK = {"measured": 0, "interpolated": 1, "roofline": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRow:
    """One row of the file with its price; `us` is what was measured, None when the row does not say."""

    op: str
    predicted_us: float
    source: str
    family: str
    num_kernels: int
    us: float | None
    note: str

    @property
    def error(self) -> float | None:
        """predicted / measured - 1."""
        return None if not self.us else self.predicted_us / self.us - 1.0

    def to_json(self) -> dict[str, Any]:
        found = {
            "op": self.op,
            "predicted_us": round(self.predicted_us, 3),
            "source": self.source,
            "family": self.family,
            "num_kernels": self.num_kernels,
        }
        if self.error is not None:
            found |= {"us": self.us, "error": round(self.error, 4)}
        return found | ({"note": self.note} if self.note else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRow:
    """A row that describes no operator. problem: why."""

    problem: str

    def to_json(self) -> dict[str, Any]:
        return {"predicted_us": None, "source": "refused", "problem": self.problem}


def price_file(path: Path, pricer: Pricer) -> tuple[list[PricedRow | RefusedRow], str]:
    """(all rows of `path` (JSON lines, .gz too) in their order, what is wrong with those that cannot be priced or '')."""
    priced: list[PricedRow | RefusedRow] = []
    wrong = []
    for line_number, text in _lines(path):
        try:
            row = _parsed(text)
            calls, note = calls_of(row)
            priced.append(_priced(row, calls, note, pricer))
        except (ValueError, TypeError, KeyError, IndexError, ArithmeticError) as error:
            priced.append(RefusedRow(problem=str(error)))
            wrong.append(f"{path}:{line_number}: {error}")
    return priced, "\n".join([f"{len(wrong)} rows cannot be priced", *wrong[:20]]) if wrong else ""


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, text
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None


def _parsed(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from None
    if isinstance(row, dict) and "us" in row and row["us"] is not None:
        if isinstance(row["us"], bool) or not isinstance(row["us"], (int, float)) or row["us"] <= 0:
            raise ValueError(f"us must be a number greater than 0, not {row['us']!r}")
    return row


def _priced(row: dict[str, Any], calls: tuple[OpCall, ...], note: str, pricer: Pricer) -> PricedRow:
    prices = [pricer.price(call) for call in calls]
    predicted = sum(map(pricer.repeated_ns, calls)) / 1e3
    costly = max(prices, key=lambda price: (_RANK[price.source], price.duration_ns))
    return PricedRow(
        op=row["op"],
        predicted_us=predicted,
        source="roofline" if note else costly.source,
        family=max(prices, key=lambda price: price.duration_ns).family,
        num_kernels=sum(price.num_kernels for price in prices),
        us=row.get("us"),
        note=note,
    )


def summary(rows: list[PricedRow | RefusedRow], least_us: float = 20.0) -> dict[str, dict[str, float]]:
    """op -> points, median and 90th percentile of |error|; 'all' and 'all over 20 us' at the end."""
    groups: dict[str, list[float]] = {}
    rows = [row for row in rows if isinstance(row, PricedRow)]
    for row in rows:
        if row.error is not None:
            groups.setdefault(row.op, []).append(abs(row.error))
    ordered = {op: _figures(groups[op]) for op in sorted(groups)}
    everything = [abs(row.error) for row in rows if row.error is not None]
    large = [abs(row.error) for row in rows if row.error is not None and (row.us or 0) > least_us]
    if everything:
        ordered["all"] = _figures(everything)
    if large:
        ordered[f"all over {least_us:.0f} us"] = _figures(large)
    return ordered


def _figures(errors: list[float]) -> dict[str, float]:
    ranked = sorted(errors)
    ninth = ranked[min(int(0.9 * len(ranked)), len(ranked) - 1)]
    return {"points": len(ranked), "median_error": round(statistics.median(ranked), 4), "p90_error": round(ninth, 4)}


def as_json(rows: list[PricedRow | RefusedRow]) -> str:
    return json.dumps({"rows": [row.to_json() for row in rows], "summary": summary(rows)}, indent=1)


def as_text(rows: list[PricedRow | RefusedRow]) -> str:
    """A line a row, then the errors by operator."""
    lines = [f"{'predicted us':>14} {'measured us':>12} {'error':>7}  source        op"]
    for row in rows:
        if isinstance(row, RefusedRow):
            lines.append(f"{'-':>14} {' ' * 20}  {'refused':12}  ({row.problem})")
            continue
        measured = f"{row.us:12.2f} {row.error:+7.1%}" if row.error is not None else " " * 20
        note = f"  ({row.note})" if row.note else ""
        lines.append(f"{row.predicted_us:14.2f} {measured}  {row.source:12}  {row.op}{note}")
    figures = summary(rows)
    if figures:
        lines += ["", f"{'op':32} {'points':>6} {'median':>7} {'p90':>7}"]
        for op, values in figures.items():
            lines.append(f"{op:32} {values['points']:6.0f} {values['median_error']:7.1%} {values['p90_error']:7.1%}")
    return "\n".join(lines)
