"""Events that order DeepEP's work, and the settings of its kernels, which do not matter here."""

from __future__ import annotations

from typing import Any

import torch


class EventHandle:
    """A moment of the current stream."""

    def __init__(self) -> None:
        self.event = torch.cuda.Event()
        self.event.record()

    def current_stream_wait(self) -> None:
        torch.cuda.current_stream().wait_event(self.event)


class EventOverlap:
    """What calls return: wait for it before the results are used."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: Any = None) -> None:
        self.event, self.extra_tensors = event, extra_tensors

    def current_stream_wait(self) -> None:
        if self.event is not None:
            self.event.current_stream_wait()

    def __enter__(self) -> "EventOverlap":
        return self

    def __exit__(self, *_: Any) -> None:
        self.current_stream_wait()


class Config:
    """Numbers of SMs and chunk sizes."""

    def __init__(self, *_: int) -> None:
        pass

    def get_nvl_buffer_size_hint(self, hidden_bytes: int, num_ranks: int) -> int:
        return 0

    get_rdma_buffer_size_hint = get_nvl_buffer_size_hint
