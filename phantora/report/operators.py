"""operators.jsonl: every priced operator call of a run with its count, from which `phantora calibrate --from` measures.

One JSON object a line, as compute.call_json writes calls, with two more fields: count (launches on all ranks) and
duration_ns (the price of one). Calls that no price depends on differing (see engine.simulation) appear as one of them.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from phantora.trace.columns import as_int64
from phantora.trace.model import Run


def write_operators(run: Run, out: Path) -> Path:
    """Writes OUT/operators.jsonl, costliest first; OSError when it cannot be written."""
    path = out / "operators.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in operator_lines(run)), encoding="utf-8")
    return path


def operator_lines(run: Run) -> list[str]:
    """The lines of the file, in an order that depends on the run only."""
    counts = np.zeros(len(run.signatures), np.int64)
    for trace in run.ranks:
        numbers = as_int64(trace.signature)
        counts += np.bincount(numbers[numbers >= 0], minlength=len(counts))
    found = [(s, int(counts[number])) for number, s in enumerate(run.signatures) if s.call and counts[number]]
    found.sort(key=lambda entry: (-entry[0].duration_ns * entry[1], entry[0].call))
    return [
        json.dumps({**json.loads(s.call), "count": count, "duration_ns": s.duration_ns}, separators=(",", ":"))
        for s, count in found
    ]
