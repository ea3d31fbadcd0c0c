"""summary.json: the result of a run as one small document with a fixed, versioned schema (docs/summary.md).

Equal runs give equal bytes but for the line of `wall_s`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import phantora
from phantora.report.breakdown import Breakdown, rank_breakdown, step_breakdowns
from phantora.trace.busbw import busbw_factor
from phantora.trace.columns import as_int64, device_rows
from phantora.trace.model import RankTrace, Run

SCHEMA_VERSION = 1
_NUM_GUESSES = 10
_SOURCES = ("measured", "interpolated", "roofline")

# field -> type; a dict or a one-element list describes what is inside. Optional values are (type, None).
_NUMBER = (int, float)
SCHEMA: dict[str, Any] = {
    "schema_version": int,
    "version": str,
    "command": [str],
    "cluster": {"name": str, "gpu": str, "gpu_memory_bytes": int, "num_nodes": int, "gpus_per_node": int},
    "world_size": int,
    "virtual_ns": int,
    "wall_s": _NUMBER,
    "complete": bool,
    "error": (str, type(None)),
    "ranks": [
        {
            "rank": int, "host_end_ns": int, "compute_ns": int, "communication_ns": int,
            "exposed_communication_ns": int, "idle_ns": int, "peak_allocated_bytes": int, "peak_reserved_bytes": int,
            "num_kernels": int, "num_communications": int, "exit_code": (int, type(None)),
        }
    ],
    "steps": [
        {"name": str, "duration_ns": int, "compute_ns": int, "exposed_communication_ns": int, "idle_ns": int}
    ],
    "collectives": [
        {
            "kind": str, "group_size": int, "bytes": int, "count": int, "total_ns": int,
            "mean_busbw_bytes_per_s": int,
        }
    ],
    "price_sources": {"measured": _NUMBER, "interpolated": _NUMBER, "roofline": _NUMBER},
    "costliest_guesses": [
        {"op": str, "inputs": str, "outputs": str, "count": int, "total_ns": int, "share": _NUMBER}
    ],
    "stand_in_values": {str: int},
    "notes": [str],
}  # fmt: skip


def summarize(run: Run) -> dict[str, Any]:
    """The summary of a run: plain values, as in docs/summary.md."""
    counts = _signature_counts(run)
    return {
        "schema_version": SCHEMA_VERSION,
        "version": phantora.__version__,
        "command": list(run.command),
        "cluster": _cluster(run.cluster),
        "world_size": run.world_size,
        "virtual_ns": run.virtual_ns,
        "wall_s": round(run.wall_s, 3),
        "complete": run.complete,
        "error": run.error,
        "ranks": [_rank(run, trace) for trace in run.ranks],
        "steps": _steps(run),
        "collectives": _collectives(run),
        "price_sources": _price_sources(run, counts),
        "costliest_guesses": _guesses(run, counts),
        "stand_in_values": dict(sorted(run.stand_ins.items())),
        "notes": list(run.notes),
    }


def write_summary(run: Run, directory: Path | str) -> Path:
    """Write DIRECTORY/summary.json (keys sorted) and return its path."""
    return save_summary(summarize(run), directory)


def save_summary(summary: Mapping[str, Any], directory: Path | str) -> Path:
    """The same of a summary that is there already."""
    validate_summary(summary)
    path = Path(directory) / "summary.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def validate_summary(summary: Mapping[str, Any]) -> None:
    """ValueError, naming the field, when `summary` does not follow the schema of this version."""
    _validate(summary, SCHEMA, "summary")
    if summary["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"summary.schema_version is {summary['schema_version']}, this version reads {SCHEMA_VERSION}")


def _validate(value: Any, schema: Any, where: str) -> None:
    if isinstance(schema, list):
        _require_type(value, list, where)
        for i, item in enumerate(value):
            _validate(item, schema[0], f"{where}[{i}]")
    elif isinstance(schema, dict):
        _require_type(value, dict, where)
        if str in schema:
            for key, item in value.items():
                _validate(item, schema[str], f"{where}.{key}")
            return
        for key in sorted(schema.keys() ^ value.keys()):
            raise ValueError(f"{where}.{key} is {'missing' if key in schema else 'not known'}")
        for key, inner in schema.items():
            _validate(value[key], inner, f"{where}.{key}")
    else:
        _require_type(value, schema, where)


def _require_type(value: Any, types: Any, where: str) -> None:
    wrong_bool = isinstance(value, bool) and types is not bool
    if wrong_bool or not isinstance(value, types):
        names = [t.__name__ for t in (types if isinstance(types, tuple) else (types,))]
        raise ValueError(f"{where} must be {' or '.join(names)}, not {type(value).__name__}")


def _cluster(cluster: object) -> dict[str, Any]:
    gpu = getattr(cluster, "gpu", None)
    return {
        "name": getattr(cluster, "name", str(cluster)),
        "gpu": getattr(gpu, "name", ""),
        "gpu_memory_bytes": getattr(gpu, "visible_memory_bytes", 0),
        "num_nodes": getattr(cluster, "num_nodes", 0),
        "gpus_per_node": getattr(cluster, "gpus_per_node", 0),
    }


def _rank(run: Run, trace: RankTrace) -> dict[str, Any]:
    times = rank_breakdown(trace)
    signature = as_int64(trace.signature)[device_rows(trace)]
    per_signature = np.array([s.num_kernels for s in run.signatures], np.int64)
    return {
        "rank": trace.rank,
        "host_end_ns": trace.host_end_ns,
        "compute_ns": times.compute_ns,
        "communication_ns": times.communication_ns,
        "exposed_communication_ns": times.exposed_communication_ns,
        "idle_ns": times.idle_ns,
        "peak_allocated_bytes": max(trace.allocated_bytes, default=0),
        "peak_reserved_bytes": max(trace.reserved_bytes, default=0),
        "num_kernels": int(per_signature[signature[signature >= 0]].sum()),
        "num_communications": int((signature < 0).sum()),
        "exit_code": trace.exit_code,
    }


def _steps(run: Run) -> list[dict[str, Any]]:
    """Steps that every rank marked: the duration is that of the slowest rank, the other times are means over ranks."""
    by_rank = [step_breakdowns(trace) for trace in run.ranks]
    num_steps = min(map(len, by_rank), default=0)
    return [_step([steps[i] for steps in by_rank]) for i in range(num_steps)]


def _step(of_ranks: list[Breakdown]) -> dict[str, Any]:
    def mean(field: str) -> int:
        return sum(getattr(b, field) for b in of_ranks) // len(of_ranks)

    return {
        "name": of_ranks[0].name,
        "duration_ns": max(b.end_ns - b.begin_ns for b in of_ranks),
        "compute_ns": mean("compute_ns"),
        "exposed_communication_ns": mean("exposed_communication_ns"),
        "idle_ns": mean("idle_ns"),
    }


def _collectives(run: Run) -> list[dict[str, Any]]:
    sums: dict[tuple[str, int, int], tuple[int, int]] = {}
    for info in run.collectives:
        if info.end_ns >= 0:
            key = (info.kind, len(info.ranks), info.bytes)
            count, total_ns = sums.get(key, (0, 0))
            sums[key] = (count + 1, total_ns + info.end_ns - info.start_ns)
    return [
        {
            "kind": kind, "group_size": size, "bytes": size_bytes, "count": count, "total_ns": total_ns,
            "mean_busbw_bytes_per_s": round(busbw_factor(kind, size) * size_bytes * count * 1e9 / max(total_ns, 1)),
        }
        for (kind, size, size_bytes), (count, total_ns) in sorted(sums.items())
    ]  # fmt: skip


def _signature_counts(run: Run) -> list[int]:
    """How often each signature ran, over all ranks."""
    counts = np.zeros(len(run.signatures), np.int64)
    for trace in run.ranks:
        signature = as_int64(trace.signature)[device_rows(trace)]
        counts += np.bincount(signature[signature >= 0], minlength=len(counts))
    return counts.tolist()


def _price_sources(run: Run, counts: list[int]) -> dict[str, float]:
    """Share of the summed kernel time of all ranks whose price came from each source."""
    total = _kernel_ns(run, counts)
    by_source = dict.fromkeys(_SOURCES, 0)
    for signature, count in zip(run.signatures, counts):
        if signature.source in by_source:  # an execution trace alone: nothing is priced yet, and all durations are 0
            by_source[signature.source] += signature.duration_ns * count
    return {source: round(ns / total, 6) if total else 0.0 for source, ns in by_source.items()}


def _guesses(run: Run, counts: list[int]) -> list[dict[str, Any]]:
    """The signatures priced by roofline alone that cost most: what to measure first."""
    total = _kernel_ns(run, counts)
    guesses = [(s.duration_ns * n, n, s) for s, n in zip(run.signatures, counts) if s.source == "roofline" and n]
    guesses.sort(key=lambda guess: (-guess[0], guess[2].name, guess[2].inputs, guess[2].outputs))
    return [
        {
            "op": s.name, "inputs": _tensors(s.inputs), "outputs": _tensors(s.outputs), "count": count,
            "total_ns": total_ns, "share": round(total_ns / max(total, 1), 6),
        }
        for total_ns, count, s in guesses[:_NUM_GUESSES]
    ]  # fmt: skip


def _kernel_ns(run: Run, counts: list[int]) -> int:
    return sum(signature.duration_ns * count for signature, count in zip(run.signatures, counts))


def _tensors(specs: tuple[tuple[str, tuple[int, ...]], ...]) -> str:
    return " ".join(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in specs)
