"""The members, counters and communication streams of process groups.

Ranks here are of two kinds: a *group rank* is an index into `Communicator.ranks`, which holds the ranks of the
simulated job.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

from torch._C import _distributed_c10d as _c10d

from phantora.intercept import session

native: Any = sys.modules["phantora_native"]


class Communicator:
    """What ncclComm_t is to NCCL: members that count their calls alike, and one stream per device."""

    __slots__ = (
        "name",
        "ranks",
        "rank",
        "is_high_priority",
        "_streams",
        "_num_calls",
        "_num_messages",
        "_num_host_calls",
    )

    def __init__(self, name: str, ranks: tuple[int, ...], rank: int) -> None:
        self.name, self.ranks, self.rank = name, ranks, rank
        self.is_high_priority = False
        self._streams: dict[int, int] = {}
        self._num_calls = 0
        self._num_host_calls = 0
        self._num_messages: Counter[tuple[Any, ...]] = Counter()

    @property
    def size(self) -> int:
        return len(self.ranks)

    def next_call(self) -> int:
        """The number of the next collective of this communicator; equal on all members."""
        self._num_calls += 1
        return self._num_calls - 1

    def next_host_call(self) -> int:
        self._num_host_calls += 1
        return self._num_host_calls - 1

    def next_message(self, *channel: Any) -> int:
        """The number of the next message on a channel (source, destination, ...); equal on both ends."""
        self._num_messages[channel] += 1
        return self._num_messages[channel] - 1

    def stream(self, device: int) -> int:
        """The communication stream, taken from the device's pool when first used."""
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = native.new_stream(device, -1 if self.is_high_priority else 0)
        return stream

    def a_used_device(self) -> int | None:
        return min(self._streams, default=None)


class Group:
    """One process group of torch as this process sees it."""

    def __init__(self, name: str, ranks: tuple[int, ...], rank: int) -> None:
        self.name = name
        self.main = _communicator(name, ranks, rank)
        self.backends: list[str] = []
        self.is_eager = False  # init_process_group(device_id=...): one communicator for everything, made at once
        self.num_splits = 0
        self.coalescing: Any = None  # coalescing.Region while a coalescing region is open

    @property
    def ranks(self) -> tuple[int, ...]:
        return self.main.ranks

    @property
    def rank(self) -> int:
        return self.main.rank

    @property
    def size(self) -> int:
        return self.main.size

    def pair(self, peer: int) -> Communicator:
        """The two-member communicator of unbatched send and recv (ProcessGroupNCCL.cpp, getKeySendRecv)."""
        low, high = min(self.rank, peer), max(self.rank, peer)
        communicator = _communicator(
            f"{self.name}:{low}:{high}", (self.ranks[low], self.ranks[high]), int(self.rank == high)
        )
        communicator.is_high_priority = self.main.is_high_priority
        return communicator


# Never emptied: when a group is destroyed and one with the same name and members is made again, counting goes on,
# on every member alike.
_communicators: dict[tuple[str, tuple[int, ...]], Communicator] = {}
_groups: dict[str, Group] = {}
_default_ranks: tuple[int, ...] = ()


def _communicator(name: str, ranks: tuple[int, ...], rank: int) -> Communicator:
    key = (name, ranks)
    found = _communicators.get(key)
    if found is None:
        found = _communicators[key] = Communicator(name, ranks, rank)
    return found


def register(torch_name: str, backend: str, members: list[int], rank: int, size: int, wire_name: str = "") -> Group:
    """A backend of process group `torch_name` was made. members: ranks of the default group; empty: that group.

    wire_name: the name under which the members meet, when it is not torch's.
    """
    global _default_ranks
    if members:
        ranks = tuple(_default_ranks[member] for member in members) if _default_ranks else tuple(members)
    else:
        ranks = _default_ranks = _ranks_of_default_group(size)
    group = _groups.get(torch_name)
    if group is None or group.ranks != ranks:
        group = _groups[torch_name] = Group(wire_name or torch_name, ranks, rank)
    if backend not in group.backends:
        group.backends.append(backend)
    return group


def _ranks_of_default_group(size: int) -> tuple[int, ...]:
    """A script's world is the job's, or this process alone."""
    if size == 1:
        return (session.rank(),)
    if session.is_connected() and size > session.world_size():
        raise ValueError(
            f"init_process_group(world_size={size}), but the simulated job has {session.world_size()} ranks"
        )
    return tuple(range(size))


def register_backends(process_group: Any) -> None:
    """Register the groups of a process group's backends from their options (set by process_group.install)."""


def of(boxed: Any) -> Group:
    """The group of a c10d operator's `process_group` argument."""
    return of_process_group(_c10d.ProcessGroup.unbox(boxed))


def of_process_group(process_group: Any) -> Group:
    """The same for torch's own object."""
    group = _groups.get(process_group.group_name)
    if group is None or len(group.backends) < len(process_group._device_types):
        # torch 2.14 does not say when a backend is complete
        register_backends(process_group)
        group = _groups.get(process_group.group_name)
    if group is None:  # put together by hand from ProcessGroup and a backend
        members = list(range(process_group.size()))
        for backend in ("nccl", "gloo"):
            group = register(process_group.group_name, backend, members, process_group.rank(), process_group.size())
    assert group is not None
    return group


def named(torch_name: str) -> Group | None:
    return _groups.get(torch_name)


def patch(c10d: Any) -> None:
    """Forget groups that torch has destroyed, so that a later group of the same name is a new one."""
    for name in ("destroy_process_group", "_abort_process_group"):
        setattr(c10d, name, _then_forget(getattr(c10d, name), c10d))
    # The wrapper of TORCH_DISTRIBUTED_DEBUG=DETAIL checks with collectives of its own; the engine checks without.
    c10d._create_process_group_wrapper = lambda wrapped_pg, **_: wrapped_pg


def _then_forget(function: Any, c10d: Any) -> Any:
    import functools

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        alive = set(c10d._world.pg_names.values())
        for name in [name for name in _groups if name not in alive]:
            del _groups[name]
        return result

    return wrapper


def high_priority_by_environment() -> bool:
    """TORCH_NCCL_HIGH_PRIORITY, as ProcessGroupNCCL reads it."""
    return os.environ.get("TORCH_NCCL_HIGH_PRIORITY", "0").lower() in ("1", "true", "yes", "y", "on")
