"""Bus bandwidth: what the busiest link carries per second, comparable between kinds and group sizes."""

from __future__ import annotations


def busbw_factor(kind: str, group_size: int) -> float:
    """busbw / algbw of a collective among `group_size` ranks; 0.0 for a barrier and for one rank alone.

    Source: nccl-tests, doc/PERFORMANCE.md, 'Bus bandwidth': all-reduce 2(n-1)/n; reduce-scatter, all-gather,
    all-to-all, gather and scatter (n-1)/n; broadcast, reduce and send/recv 1.
    """
    if group_size < 2 or kind == "barrier":
        return 0.0
    if kind in ("broadcast", "reduce", "send_recv"):
        return 1.0
    share = (group_size - 1) / group_size
    return 2 * share if kind == "all_reduce" else share


def busbw_bytes_per_s(kind: str, group_size: int, size_bytes: int, duration_ns: int) -> float:
    """Bus bandwidth in bytes/s; size_bytes as in network.operation.CommOperation.bytes. 0.0 when no time passed."""
    if duration_ns <= 0:
        return 0.0
    return busbw_factor(kind, group_size) * size_bytes * 1e9 / duration_ns
