"""The GPU side of one profiled step: a compact timeline, and the sums that matter. Needs no torch.

Timeline: {"names": [kernel name, ...], "columns": [...], "rows": [[name index, kind, stream, start_ns, duration_ns], ...]}
with kind `compute`, `communication` (NCCL kernels) or `copy` (memcpy, memset), sorted by start, the first start being 0.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

_CATEGORIES = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_COLUMNS = ["name", "kind", "stream", "start_ns", "duration_ns"]


def read_chrome_trace(path: Path) -> dict:
    """The timeline of a trace that torch.profiler exported; its times are microseconds."""
    events = json.loads(path.read_text(errors="replace"))["traceEvents"]
    events = sorted((e for e in events if e.get("cat") in _CATEGORIES), key=lambda e: e["ts"])
    names: dict[str, int] = {}
    rows = []
    for event in events:
        name = event["name"]
        kind = "communication" if name.startswith("nccl") else _CATEGORIES[event["cat"]]
        start_ns = round((event["ts"] - events[0]["ts"]) * 1e3)
        stream = event.get("args", {}).get("stream", event.get("tid"))
        rows.append([names.setdefault(name, len(names)), kind, stream, start_ns, round(event["dur"] * 1e3)])
    return {"names": list(names), "columns": _COLUMNS, "rows": rows}


def write(timeline: dict, path: Path) -> None:
    with gzip.open(path, "wt") as file:
        json.dump(timeline, file, separators=(",", ":"))


def summarize(timeline: dict) -> dict:
    """Sums of a timeline in ms: unions of intervals, so what overlaps counts once; copies count as compute."""
    spans = {kind: [(r[3], r[3] + r[4]) for r in timeline["rows"] if r[1] == kind] for kind in ("compute", "copy", "communication")}
    work = spans["compute"] + spans["copy"]
    busy, compute = union_ns(work + spans["communication"]), union_ns(work)
    return {
        "kernels": len(spans["compute"]) + len(spans["communication"]),
        "communication_kernels": len(spans["communication"]),
        "copies": len(spans["copy"]),
        "gpu_span_ms": _ms(max((r[3] + r[4] for r in timeline["rows"]), default=0)),
        "busy_ms": _ms(busy),
        "compute_ms": _ms(compute),
        "communication_ms": _ms(union_ns(spans["communication"])),
        "exposed_communication_ms": _ms(busy - compute),
    }


def union_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Length of the union of (start, end) intervals."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or end > reached:
            total += end - (start if reached is None else max(start, reached))
            reached = end
    return total


def _ms(duration_ns: int) -> float:
    return round(duration_ns / 1e6, 3)
