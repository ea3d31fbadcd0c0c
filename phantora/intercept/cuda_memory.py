"""The memory functions of torch._C behind torch.cuda.memory: all numbers come from the emulated caching allocator."""

from __future__ import annotations

import sys
from typing import Any

from phantora.intercept import memory_history

_THIS_THREAD, _ALL_STREAMS = -1, -2  # phantora_native.begin_pool
_PRIVATE_POOLS = "reserved_bytes_by_private_pools"


def make_functions(native: Any, torch_version: str) -> dict[str, Any]:
    """name in torch._C -> function."""
    has_private_pools = not torch_version.startswith("2.12.")  # its Python cannot flatten keys that are tuples

    def begin_to_pool(device: int, pool: tuple[int, int]) -> None:
        native.begin_pool(device, *pool, _ALL_STREAMS)

    def begin_thread_to_pool(device: int, pool: tuple[int, int]) -> None:
        native.begin_pool(device, *pool, _THIS_THREAD)

    raw_blocks: dict[int, Any] = {}  # torch.cuda.caching_allocator_alloc

    def raw_alloc(num_bytes: int, stream: int) -> int:
        torch: Any = sys.modules["torch"]
        device = native.device()
        previous = native.set_stream(device, stream)
        try:
            tensor = torch.empty(num_bytes, dtype=torch.uint8, device=torch.device("cuda", device))
        finally:
            native.set_stream(device, previous)
        raw_blocks[native.address(tensor)] = tensor
        return native.address(tensor)

    def raw_delete(address: int) -> None:
        if raw_blocks.pop(address, None) is None:
            raise ValueError(f"invalid device pointer: {address}")

    return memory_history.make_functions(native) | {
        "_cuda_cudaCachingAllocator_raw_alloc": raw_alloc,
        "_cuda_cudaCachingAllocator_raw_delete": raw_delete,
        "_cuda_clearCublasWorkspaces": lambda: sys.modules["phantora.intercept.workspaces"].clear(),
        "_cuda_getCheckpointState": _no_checkpoints,
        "_cuda_setCheckpointPoolState": _no_checkpoints,
        "_cuda_memoryStats": lambda device: nested(native.stats(device), has_private_pools),
        "_cuda_resetAccumulatedMemoryStats": native.reset_accumulated,
        "_cuda_resetPeakMemoryStats": native.reset_peak,
        "_cuda_emptyCache": native.empty_cache,
        "_cuda_setMemoryFraction": native.set_memory_fraction,
        "_cuda_getMemoryFraction": native.memory_fraction,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
        "_cuda_cudaCachingAllocator_set_allocator_settings": native.apply_allocator_settings,
        "_accelerator_setAllocatorSettings": native.apply_allocator_settings,
        "_cuda_beginAllocateToPool": begin_to_pool,
        "_cuda_beginAllocateCurrentStreamToPool": begin_to_pool,
        "_cuda_beginAllocateCurrentThreadToPool": begin_thread_to_pool,
        "_cuda_endAllocateToPool": lambda device, pool: native.end_pool(device, *pool),
        "_cuda_releasePool": lambda device, pool: native.release_pool(device, *pool),
        "_cuda_hostMemoryStats": dict,
    }


def _no_checkpoints(*args: Any) -> None:
    raise NotImplementedError("phantora: states of private pools (CUDA graph trees) cannot be saved and restored")


def nested(flat: dict[str, int], has_private_pools: bool = True) -> dict[str, Any]:
    """'active.all.peak' -> {'active': {'all': {'peak': ...}}}; private pools are keyed by their id."""
    result: dict[str, Any] = {_PRIVATE_POOLS: {}} if has_private_pools else {}
    for name, value in flat.items():
        *path, last = name.split(".")
        if path[:1] == [_PRIVATE_POOLS] and not has_private_pools:
            continue
        level = result
        for part in path:
            key: Any = part
            if level is result.get(_PRIVATE_POOLS):
                key = tuple(int(number) for number in part.split("_"))
            level = level.setdefault(key, {})
        level[last] = value
    return result
