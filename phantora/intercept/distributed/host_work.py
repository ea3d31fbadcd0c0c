"""What waits for a host collective: the Work objects of Gloo calls.

ProcessGroupGloo runs async calls in its own threads; here the host posts its part when it issues the call and takes the
others' when it waits, so that the engine sees who waits for whom.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as _c10d

from phantora.intercept import session
from phantora.intercept.distributed.contents import Payloads

Apply = Callable[[Payloads], None]

# C++ holds only the C++ half of a Work. Its Python half lives here until it was waited for, and a while longer for
# those who wait twice.
_pending: dict[int, "HostWork"] = {}
_finished: deque["HostWork"] = deque(maxlen=1024)


class HostWork(_c10d.Work):
    """Waiting (or asking whether it is done) takes the members' payloads from the engine and fills the outputs."""

    def __init__(self, fetch: Callable[[], None], results: Sequence[Tensor]) -> None:
        super().__init__()
        self._fetch: Callable[[], None] | None = fetch
        self._results = list(results)
        _pending[id(self)] = self

    def _finish(self) -> None:
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            fetch()
            _finished.append(_pending.pop(id(self)))

    def wait(self, timeout: Any = None) -> bool:
        self._finish()
        return True

    def is_completed(self) -> bool:
        self._finish()
        return True

    def is_success(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._finish()

    def result(self) -> list[Tensor]:
        self._finish()
        return self._results

    def get_future(self) -> torch.futures.Future[Any]:
        self._finish()
        return _completed_future(self._results)


def _completed_future(results: list[Tensor]) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(results)
    return future


def completed(results: Sequence[Tensor]) -> Any:
    """A boxed Work of something that is done."""
    return _c10d._create_work_from_future(_completed_future(list(results))).boxed()  # type: ignore[attr-defined]


def pending(fetch: Callable[[], None], results: Sequence[Tensor]) -> Any:
    """A boxed Work that calls `fetch` when somebody waits."""
    return HostWork(fetch, results).boxed()  # type: ignore[attr-defined]


def fetcher(group: str, ranks: tuple[int, ...], seq: Any, apply: Apply) -> Callable[[], None]:
    """Blocks until all of `ranks` have posted call `seq`, moves the clock, and applies what they sent."""

    def fetch() -> None:
        reply = session.call("host_fetch", group=group, ranks=ranks, seq=seq)
        sys.modules["phantora_native"].wait_until_ns(reply["ns"])
        apply(reply["payloads"])

    return fetch
