"""The base classes of torch.cuda.Stream, Event, CUDAGraph and MemPool, which a CPU build of torch lacks.

torch.cuda's own Python derives from them. Streams and events are torch.Stream and torch.Event, whose C++ works on the
simulated device guard.
"""

from __future__ import annotations

import itertools
from typing import Any

_CUDA = 1  # c10::DeviceType::CUDA
_ALL_STREAMS = -2  # phantora_native.begin_pool


def make_classes(extension: Any, native: Any) -> dict[str, Any]:
    """name in torch._C -> class. `extension` is torch._C, `native` the native device."""
    pool_ids = itertools.count(1)
    return {
        "_CudaStreamBase": _stream_class(extension, native),
        "_CudaEventBase": _event_class(extension, native),
        "_CUDAGraph": _graph_class(native, pool_ids),
        "_MemPool": _pool_class(native, pool_ids),
        "_graph_pool_handle": lambda: (0, next(pool_ids)),
    }


def _stream_class(extension: Any, native: Any) -> type:
    class _CudaStreamBase(extension.Stream):  # type: ignore[misc, name-defined]
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
            device: Any = None,
        ) -> Any:
            if stream_ptr:
                stream_id, device_index = int(stream_ptr), native.device()
            elif not (stream_id or device_index or device_type):
                device_index = native.device()
                stream_id = native.new_stream(device_index, priority)
            return extension.Stream.__new__(cls, stream_id=stream_id, device_index=device_index, device_type=_CUDA)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_stream(self) -> int:
            return self.stream_id

        @property
        def priority(self) -> int:
            # c10/cuda/CUDAStream.cpp: pool streams are index << 5 | (1 - priority) << 1 | 1
            return 1 - ((self.stream_id >> 1) & 15) if self.stream_id & 1 else 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return (0, -5)

        def __eq__(self, other: object) -> bool:
            if not isinstance(other, extension.Stream):
                return False
            return (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

        def __hash__(self) -> int:
            return hash((self.stream_id, self.device_index))

    return _CudaStreamBase


def _event_class(extension: Any, native: Any) -> type:
    class _CudaEventBase(extension.Event):  # type: ignore[misc, name-defined]
        def __new__(
            cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
        ) -> Any:
            kind = {"enable_timing": enable_timing, "blocking": blocking, "interprocess": interprocess}
            event = extension.Event.__new__(cls, device="cuda", **kind)
            event._times = enable_timing
            return event

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        @property
        def cuda_event(self) -> int:
            return self.event_id

        def elapsed_time(self, end_event: Any) -> float:
            # c10::cuda::CUDAEvent::elapsed_time: the same checks and words
            if not (self._times and getattr(end_event, "_times", True)):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if not (self.event_id and end_event.event_id):
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            return native.elapsed_ms(self.event_id, end_event.event_id)

    return _CudaEventBase


class _Captured:
    """What a graph has of the device. A class of its own, because torch.cuda.CUDAGraph.__del__ hides that of its base."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.graph: int | None = None
        self.held_pool: tuple[int, int, int] | None = None  # device and id

    def release(self) -> None:
        if self.graph is not None:
            self.native.destroy_graph(self.graph)
            self.graph = None
        if self.held_pool is not None:
            self.native.release_pool(*self.held_pool)
            self.held_pool = None

    def __del__(self) -> None:
        self.release()


def _graph_class(native: Any, pool_ids: Any) -> type:
    class _CUDAGraph:
        """Capturing keeps launches and events, replay issues them again for one host call (native/device.h)."""

        _has_graph_exec = True

        def __new__(cls, keep_graph: bool = False) -> Any:
            graph = object.__new__(cls)
            graph._captured, graph._pool, graph._device = _Captured(native), None, 0
            return graph

        def __init__(self, keep_graph: bool = False) -> None:
            pass

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
            if native.capturing():
                raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
            self._device = native.device()
            if native.stream(self._device) == 0:
                raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
            self._pool = tuple(pool) if pool else (next(pool_ids), 0)
            native.begin_pool(self._device, *self._pool, _ALL_STREAMS)
            self._captured.held_pool = (self._device, *self._pool)
            native.capture(True)

        def capture_end(self) -> None:
            _CUDAGraph.capture_end_pre(self)

        # The steps in which torch 2.14 takes it.
        def capture_end_pre(self) -> None:
            self._captured.graph = native.capture(False)
            native.end_pool(self._device, *self._pool)

        def capture_end_post(self) -> None:
            pass

        def instantiate(self) -> None:
            pass

        def replay(self) -> None:
            if self._captured.graph is None:
                raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
            native.launch_graph(self._captured.graph)

        def reset(self) -> None:
            self._captured.release()

        def pool(self) -> Any:
            if self._pool is None:
                raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
            return self._pool

        def pools(self) -> list[Any]:
            return [self.pool()]

        def _retain_pool(self, pool: Any) -> None:
            pass

        def register_generator_state(self, generator: Any) -> None:
            pass

        def enable_debug_mode(self) -> None:
            pass

        def debug_dump(self, debug_path: str) -> None:
            pass

        def raw_cuda_graph(self) -> int:
            return 0

        def raw_cuda_graph_exec(self) -> int:
            return 0

    return _CUDAGraph


def _pool_class(native: Any, pool_ids: Any) -> type:
    class _MemPool:
        def __init__(
            self, allocator: Any = None, is_user_created: bool = True, use_on_oom: bool = False, no_split: bool = False
        ) -> None:
            number = next(pool_ids)
            self._id = (0, number) if is_user_created else (number, 0)
            self._device = native.device()
            self.allocator = allocator
            native.create_pool(self._device, *self._id)

        @property
        def id(self) -> tuple[int, int]:
            return self._id

        @property
        def device(self) -> int:
            return self._device

        def use_count(self) -> int:
            return native.pool_use_count(self._device, *self._id)

        def __del__(self) -> None:
            native.release_pool(self._device, *self._id)

    return _MemPool
