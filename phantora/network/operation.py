"""What the network is asked to carry: one communication operation between GPUs. No torch here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather", "scatter",
    "barrier",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CommOperation:
    """One collective (or one send/recv pair).

    ranks: global ranks in group order. send_recv: (source, destination), or more: each sends to the one that follows
        it, all at once ((0, 1, 0) is an exchange).
    bytes: the size that nccl-tests calls `size`, in bytes: the whole buffer of an all-reduce, broadcast or reduce;
        the gathered result of an all-gather or gather; the whole input of a reduce-scatter or scatter; what one rank
        sends in total in an all-to-all (its own part included); the message of a send/recv; 0 for a barrier.
    dtype: torch's name without 'torch.'.
    root: index into `ranks` (broadcast, reduce, gather, scatter), else 0.
    split_bytes: all-to-all with unequal parts: split_bytes[i][j] is what ranks[i] sends to ranks[j]; else None.
    """

    kind: Kind
    ranks: tuple[int, ...]
    bytes: int
    dtype: str = "float32"
    root: int = 0
    split_bytes: tuple[tuple[int, ...], ...] | None = None


class Network(Protocol):
    """A fluid network on integer nanoseconds. Calls come with non-decreasing `now_ns`; equal calls, equal answers."""

    def begin(self, key: int, operation: CommOperation, now_ns: int, slowdown: float = 1.0) -> None:
        """Start `operation` at `now_ns`; `key` is the caller's name for it (unique while it is in flight).

        slowdown: it needs that many times longer than its links alone would let it.
        """

    def next_ns(self) -> int | None:
        """When something may finish next if nothing else begins; None when idle. Never earlier than the last now_ns.

        An instant at which rates change or a latency ends also counts: advance() to it may return nothing.
        """

    def advance(self, now_ns: int) -> list[int]:
        """Move to `now_ns` (not beyond next_ns()) and return the keys of finished operations, in order of begin()."""
