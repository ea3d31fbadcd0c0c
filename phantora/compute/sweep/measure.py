"""Runs cases on the GPU and writes one JSON line each: time first, then a second pass that counts kernels.

Lines are written as they come, so a sweep that is killed leaves what it measured.
"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any, TextIO

import torch

from phantora.compute.call_json import to_json
from phantora.compute.sweep.case import Case
from phantora.compute.sweep.timing import device_us, input_bytes, kernels, observed, wall_us

_BATCH = 48
_WAITING_BATCH = 6  # these can launch thousands of kernels
_LISTED_KERNELS = 120
_BATCH_BYTES = 12 << 30
_KEPT_CACHE_BYTES = 80 << 30


def provenance() -> dict[str, Any]:
    """GPU, driver, torch and date of a sweep."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "num_sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "driver": _driver(),
        "date": datetime.date.today().isoformat(),
        "method": "device events over 5-40 launches (at most 10 ms) queued behind a sleep kernel, families alternating, "
        "inputs rotated beyond L2",
    }


def _driver() -> str:
    path = Path("/proc/driver/nvidia/version")
    if not path.exists():
        return "unknown"
    words = path.read_text(encoding="utf-8").splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def sweep(numbered: list[tuple[int, Case]], out: TextIO, seconds: float) -> tuple[int, int]:
    """Measures until `seconds` are over (four fifths for times, the rest for kernels); (rows, kernel rows) written."""
    begun = time.monotonic()
    done = _times(numbered, out, begun + 0.8 * seconds)
    done.sort(key=lambda entry: not entry[1].waits)  # these have no other time than that of their kernels
    return len(done), _kernels(done, out, begun + seconds)


def _times(numbered: list[tuple[int, Case]], out: TextIO, until: float) -> list[tuple[int, Case, int]]:
    done = []
    for number, case in numbered:
        if time.monotonic() > until:
            break
        row: dict[str, Any] = {"case": number, "op": case.op, **case.fields}
        try:
            first, observer = observed(case)
            calls = observer.calls if case.call is None else [case.call]
            row |= _timed(case, first) | {"calls": [to_json(c) for c in calls]}
            done.append((number, case, input_bytes(first)))
            first = observer = None  # type: ignore[assignment]
        except Exception as error:  # recorded, not hidden: out of memory, or no kernel for these shapes
            row["error"] = f"{type(error).__name__}: {str(error)[:160]}"
        write(out, row)
        if "error" in row or torch.cuda.memory_reserved() > _KEPT_CACHE_BYTES:
            torch.cuda.empty_cache()
    return done


def _timed(case: Case, first: tuple[Any, ...]) -> dict[str, Any]:
    """us and host_us; for a case that waits for the device, whose launches cannot be queued, wall_us of one run."""
    if case.waits:
        return {"us": 0.0, "host_us": 0.0, "wall_us": round(wall_us(case, first), 1)}
    us, host_us = device_us(case, first)
    return {"us": round(us, 3), "host_us": round(host_us, 2)}


def _kernels(done: list[tuple[int, Case, int]], out: TextIO, until: float) -> int:
    written, batch, size = 0, [], 0
    torch.cuda.empty_cache()
    for entry in [*done, None]:
        limit = _WAITING_BATCH if batch and batch[0][1].waits else _BATCH
        if entry is None or len(batch) >= limit or (batch and size + entry[2] > _BATCH_BYTES):
            for (number, *_), found in zip(batch, _safe_kernels([case for _, case, _ in batch])):
                write(out, {"case": number} | _listed(found))
                written += 1
            batch, size = [], 0
            if entry is None or time.monotonic() > until:
                break
        batch.append(entry)
        size += entry[2]
    return written


def _listed(found: list[tuple[str, float]]) -> dict[str, Any]:
    """Every kernel with its time; of very many (factorizations launch thousands) their number and sum by name."""
    if len(found) <= _LISTED_KERNELS:
        return {"kernels": [[name, round(us, 3)] for name, us in found]}
    sums: dict[str, list[float]] = {}
    for name, us in found:
        entry = sums.setdefault(name, [0, 0.0])
        entry[0], entry[1] = entry[0] + 1, entry[1] + us
    ranked = sorted(sums.items(), key=lambda item: (-item[1][1], item[0]))[:20]
    return {
        "kernel_sum": [len(found), round(sum(us for _, us in found), 3)],
        "kernels_by_name": [[name, count, round(us, 3)] for name, (count, us) in ranked],
    }


def _safe_kernels(cases: list[Case]) -> list[list[tuple[str, float]]]:
    try:
        return kernels(cases)
    except Exception:  # the times of the batch stand; only its kernels are unknown
        torch.cuda.empty_cache()
        return []


def write(out: TextIO, row: dict[str, Any]) -> None:
    out.write(json.dumps(row, separators=(",", ":")) + "\n")
    out.flush()
