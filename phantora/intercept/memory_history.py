"""torch.cuda.memory._record_memory_history and _snapshot: the allocator's history as pytorch.org/memory_viz reads it.

The native device keeps the actions (intercept/native/memory_history.cpp); here they get names and readable stacks.
Frames of this package are left out, so that stacks read as on a GPU. Stacks are Python's; `stacks="all"` adds no C++
frames.
Formats: THCPModule_memorySnapshot (torch/csrc/cuda/Module.cpp), torch.cuda.memory._snapshot's documentation (2.13).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from phantora.intercept.session import PACKAGE_DIR

_ACTIONS = (  # memory::TraceEvent::Action
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    "snapshot", "oom",
)  # fmt: skip
_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}
_EPOCH_US = 1_767_225_600 * 1_000_000  # virtual time 0 is 2026-01-01T00:00:00Z (docs/design.md)
_MOST_ENTRIES = (1 << 63) - 1
_Frames = list[dict[str, Any]]


def make_functions(native: Any) -> dict[str, Any]:
    """name in torch._C -> function."""

    def record(
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = _MOST_ENTRIES,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Sequence[str] = (),
    ) -> None:
        _require(enabled in (None, "state", "all"), "expected state to be 'state', 'all', or None")
        _require(context in _CONTEXTS, "expected context to be 'state', 'alloc', 'all', or None")
        _require(stacks in ("python", "all"), "expected stacks to be 'python', or 'all'")
        kept = min(max_entries, _MOST_ENTRIES) if enabled == "all" else 1
        skipped = _skipped(skip_actions)
        native.record_memory_history(enabled is not None, _CONTEXTS[context], kept, clear_history, skipped)

    def record_legacy(
        enabled: bool,
        record_context: bool = True,
        trace_alloc_max_entries: int = 1,
        trace_alloc_record_context: bool = False,
        record_context_cpp: bool = False,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Sequence[str] = (),
    ) -> None:
        context = "state" if record_context else None
        if trace_alloc_record_context and record_context:
            context = "alloc"
        kept = max(trace_alloc_max_entries, 1)
        skipped = _skipped(skip_actions)
        native.record_memory_history(bool(enabled), _CONTEXTS[context], kept, clear_history, skipped)

    def snapshot(pool: Any = None) -> dict[str, Any]:
        """pool: None, or (first, second[, include_traces]); (0, 0) means all pools."""
        frames = _frames_of(native)
        devices = range(native.num_devices())
        segments = [segment for device in devices for segment in native.snapshot(device)]
        if pool is not None and tuple(pool[:2]) != (0, 0):
            segments = [segment for segment in segments if segment["segment_pool_id"] == tuple(pool[:2])]
        for segment in segments:
            segment["frames"] = frames(segment["frames"])
            for block in segment["blocks"]:
                block["frames"] = frames(block["frames"])
        with_traces = pool is None or len(pool) < 3 or bool(pool[2])
        traces = [[_entry(row, frames) for row in native.memory_history(d)] for d in devices] if with_traces else []
        settings = native.allocator_settings(native.device())
        settings["PYTORCH_CUDA_ALLOC_CONF"] = settings["PYTORCH_CUDA_ALLOC_CONF"] or os.environ.get(
            "PYTORCH_CUDA_ALLOC_CONF", ""
        )
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": settings,
            "external_annotations": [],
        }

    return {
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_isHistoryEnabled": native.is_memory_history_on,
        "_cuda_memorySnapshot": snapshot,
        "_cuda_attach_out_of_memory_observer": native.observe_out_of_memory,
    }


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _skipped(actions: Sequence[str]) -> int:
    for action in actions:
        _require(action in _ACTIONS, f"unknown action {action!r} in skip_actions (known: {', '.join(_ACTIONS)})")
    return sum(1 << _ACTIONS.index(action) for action in set(actions))


def _frames_of(native: Any) -> Callable[[int], _Frames]:
    """Frames of a stack's number, innermost first; each stack is described once, so equal ones share their frames."""
    known: dict[int, _Frames] = {0: []}

    def frames(stack: int) -> _Frames:
        if stack not in known:
            known[stack] = [
                {"name": function, "filename": file, "line": line}
                for file, line, function in native.describe_stack(stack)
                if not file.startswith(PACKAGE_DIR)
            ]
        return known[stack]

    return frames


def _entry(row: tuple[int, ...], frames: Callable[[int], _Frames]) -> dict[str, Any]:
    action, address, num_bytes, stream, pool_first, pool_second, time_ns, stack = row
    name = _ACTIONS[action]
    entry: dict[str, Any] = {
        "action": name,
        "device_free" if name == "oom" else "addr": address,
        "size": num_bytes,
        "stream": stream,
        "time_us": _EPOCH_US + time_ns // 1000,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": (pool_first, pool_second),
    }
    if stack:
        entry["frames"] = frames(stack)
    return entry
