"""Small Kineto documents: events with as few words as possible, times in whole microseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 7, 8


def op(name: str, ts: Any, dur: Any, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def annotation(name: str, ts: Any, dur: Any, tid: int = MAIN, **args: Any) -> dict[str, Any]:
    return {**op(name, ts, dur, tid, **args), "cat": "user_annotation"}


def call(name: str, ts: Any, dur: Any, correlation: int, tid: int = MAIN) -> dict[str, Any]:
    args = {"External id": correlation, "correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 7, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: Any, dur: Any, correlation: int, stream: int = 7, **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": stream, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def copy(name: str, ts: Any, dur: Any, correlation: int, stream: int = 7, **args: Any) -> dict[str, Any]:
    return {**kernel(name, ts, dur, correlation, stream, **args), "cat": "gpu_memcpy"}


def sync(kind: str, ts: Any, dur: Any, correlation: int, **args: Any) -> dict[str, Any]:
    args = {"cuda_sync_kind": kind, "correlation": correlation, "device": 0, "stream": -1, **args}
    return {"ph": "X", "cat": "cuda_sync", "name": kind, "pid": 0, "tid": -1, "ts": ts, "dur": dur, "args": args}


def launched(
    name: str, at: int, start: int, dur: int, correlation: int, stream: int = 7, tid: int = MAIN, **args: Any
) -> list[dict[str, Any]]:
    """A launch at `at` and the kernel that starts at `start`."""
    return [call("cudaLaunchKernel", at, 2, correlation, tid), kernel(name, start, dur, correlation, stream, **args)]


def collective(name: str, seq: int, ranks: list[int], nelems: int, **more: Any) -> dict[str, Any]:
    """Arguments of a kernel of NCCL."""
    return {
        "Collective name": name, "In msg nelems": nelems, "Out msg nelems": nelems, "Group size": len(ranks),
        "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": str(ranks), "Seq": seq, **more,
    }  # fmt: skip


def document(events: list[dict[str, Any]], rank: int | None = None, world_size: int = 1, **more: Any) -> dict[str, Any]:
    info = {} if rank is None else {"distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size}}
    return {"schemaVersion": 1, **info, "deviceProperties": [], **more, "traceEvents": events}


def written(folder: Path, *documents: dict[str, Any]) -> list[Path]:
    """The documents as files rank0.json, rank1.json, ..."""
    paths = []
    for number, content in enumerate(documents):
        paths.append(folder / f"rank{number}.json")
        paths[-1].write_text(json.dumps(content))
    return paths
