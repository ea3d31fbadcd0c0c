"""The CUDA caching allocator of one simulated device, from Python.

`AllocatorEmulator` runs the same native code as the simulated device of a rank (phantora/memory/native), so tests and
tools see what a training script would see. All sizes are bytes.
"""

import ctypes
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from phantora.errors import SimulationError, UserError
from phantora.memory.library import TraceRow, load

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
PoolId = tuple[int, int]
DEFAULT_POOL: PoolId = (0, 0)


class OutOfMemory(SimulationError):
    """An allocation did not fit; the text is that of torch.OutOfMemoryError."""


class Event(NamedTuple):
    """One action of the allocator, as in torch's memory history."""

    action: str
    address: int
    bytes: int
    stream: int


class AllocatorEmulator:
    """One device's allocator with a clock that the caller moves.

    total_bytes: memory of the device; context_bytes: what the CUDA context takes of it; settings: as in
    PYTORCH_CUDA_ALLOC_CONF (UserError if torch would refuse them). Work on other streams (`record_stream`) counts as
    running until `finish_stream`.
    """

    def __init__(
        self, *, device: int = 0, settings: str = "", total_bytes: int = 80 << 30, context_bytes: int = 0
    ) -> None:
        self._library = load()
        self._handle = self._library.new(device, settings.encode(), total_bytes, context_bytes)
        if not self._handle:
            raise UserError(self._library.error(None).decode())

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.delete(self._handle)
            self._handle = None

    def malloc(self, num_bytes: int, stream: int = 0) -> int:
        """Address of a new allocation; OutOfMemory if it does not fit."""
        address = ctypes.c_uint64()
        status = self._library.malloc(self._handle, num_bytes, stream, ctypes.byref(address))
        if status == 1:
            raise OutOfMemory(self._error())
        self._check(status)
        return address.value

    def free(self, address: int) -> None:
        """Ends an allocation; its block is reused at once, or when the streams that were recorded are finished."""
        self._check(self._library.free(self._handle, address))

    def record_stream(self, address: int, stream: int) -> None:
        """Notes that `stream` uses the allocation, too."""
        self._check(self._library.record_stream(self._handle, address, stream))

    def finish_stream(self, stream: int) -> None:
        """All work queued on `stream` so far is done."""
        self._library.finish_stream(self._handle, stream)

    def empty_cache(self, pool: PoolId = DEFAULT_POOL) -> None:
        """Gives free segments back to the device."""
        self._check(self._library.empty_cache(self._handle, *pool))

    def set_memory_fraction(self, fraction: float) -> None:
        """Limits what may be reserved to a share of the device's memory."""
        self._check(self._library.set_fraction(self._handle, fraction))

    def apply_settings(self, settings: str) -> None:
        """As torch.cuda.memory._set_allocator_settings."""
        self._check(self._library.apply(self._handle, settings.encode()))

    def set_other_bytes(self, num_bytes: int) -> None:
        """Memory of the device that something beside the allocator holds."""
        self._library.set_other_bytes(self._handle, num_bytes)

    def free_bytes(self) -> int:
        """Free memory of the device, as cudaMemGetInfo says."""
        return self._library.free_bytes(self._handle)

    def block_bytes(self, address: int) -> int:
        """Rounded size of a live allocation; 0 if there is none."""
        return self._library.block_size(self._handle, address)

    def segment_of(self, address: int) -> tuple[int, int]:
        """(address, bytes) of the segment that holds a live allocation."""
        base, num_bytes = ctypes.c_uint64(), ctypes.c_uint64()
        self._check(
            self._library.segment_of(self._handle, address, ctypes.byref(base), ctypes.byref(num_bytes))
        )
        return base.value, num_bytes.value

    def place_segments(self, addresses: Iterable[int]) -> None:
        """The next segments get these addresses, in order: for replaying a recorded run."""
        for address in addresses:
            self._library.place(self._handle, address)

    def stats(self) -> dict[str, int]:
        """Names and values of torch.cuda.memory_stats."""
        return json.loads(self._library.stats(self._handle))

    def reset_peak(self) -> None:
        """As torch.cuda.reset_peak_memory_stats."""
        self._library.reset_peak(self._handle)

    def reset_accumulated(self) -> None:
        """As torch.cuda.reset_accumulated_memory_stats."""
        self._library.reset_accumulated(self._handle)

    def snapshot(self, pool: PoolId = DEFAULT_POOL) -> list[dict[str, Any]]:
        """Segments and their blocks, with the keys of torch.cuda.memory_snapshot; every pool, or one private pool."""
        return json.loads(self._library.snapshot(self._handle, *pool))

    def start_trace(self) -> None:
        """Records every action from now on."""
        self._library.set_tracing(self._handle, 1)

    def take_trace(self) -> list[Event]:
        """The actions since the last call, oldest first."""
        rows = ctypes.POINTER(TraceRow)()
        count = self._library.trace(self._handle, ctypes.byref(rows))
        events = [Event(ACTIONS[r.action], r.address, r.bytes, r.stream) for r in rows[:count]]
        self._library.clear_trace(self._handle)
        return events

    # Private pools, as CUDA graphs and torch.cuda.MemPool use them.

    def create_pool(self, pool: PoolId, *, own_allocator: bool = False) -> None:
        """Makes a private pool, or adds a user to an existing one."""
        self._pool(6 if own_allocator else 0, pool)

    def begin_allocate_to_pool(self, pool: PoolId, stream: int | None = None) -> None:
        """Allocations (of one stream, or of all) come from this pool until end_allocate_to_pool."""
        self._pool(1, pool, -1 if stream is None else stream)

    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """Allocations come from the default pool again."""
        self._pool(2, pool)

    def release_pool(self, pool: PoolId) -> None:
        """One user less; without users the pool's free segments may be given back."""
        self._pool(3, pool)

    def use_pool_on_oom(self, pool: PoolId) -> None:
        """Free blocks of this pool serve other allocations before memory runs out."""
        self._pool(4, pool)

    def never_split_pool(self, pool: PoolId) -> None:
        """Segments of this pool stay whole."""
        self._pool(5, pool)

    def _pool(self, action: int, pool: PoolId, stream: int = -1) -> None:
        self._check(self._library.pool(self._handle, action, *pool, stream))

    def _error(self) -> str:
        return self._library.error(self._handle).decode()

    def _check(self, status: int) -> None:
        if status != 0:
            raise ValueError(self._error())


def settings_error(settings: str) -> str | None:
    """Why torch would refuse this PYTORCH_CUDA_ALLOC_CONF, or None when it is right."""
    text = load().check_settings(settings.encode())
    return None if text is None else text.decode()


def format_size(num_bytes: int) -> str:
    """A size as torch's messages write it: '512 bytes', '20.00 GiB'."""
    buffer = ctypes.create_string_buffer(64)
    length = load().format_size(num_bytes, buffer, 64)
    return buffer.raw[:length].decode()
