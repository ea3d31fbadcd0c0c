"""What a step of a recorded run sent, held and computed: the quantities that papers give formulas for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from phantora.trace.model import CollectiveInfo, Run


@dataclass(frozen=True, slots=True)
class Span:
    """Virtual time between a host's push and pop of an NVTX range, ns."""

    begin_ns: int
    end_ns: int


def span(run: Run, name: str, rank: int = 0, which: int = -1) -> Span:
    """The last (or `which`) range of that name on a rank."""
    trace, found, open_marks = run.ranks[rank], [], []
    for mark, depth, at_ns in zip(trace.mark_name, trace.mark_depth, trace.mark_ns):
        if depth > 0:
            open_marks.append((mark, at_ns))
        elif depth < 0:
            begun, begin_ns = open_marks.pop()
            if begun == name:
                found.append(Span(begin_ns, at_ns))
    return found[which]


def collectives_of(run: Run, rank: int, within: Span) -> Iterator[CollectiveInfo]:
    for collective in run.collectives:
        if rank in collective.ranks and within.begin_ns <= collective.start_ns <= within.end_ns:
            yield collective


def sent_bytes(collective: CollectiveInfo, rank: int) -> float:
    """What a rank sends in it, at the least that any algorithm must (Patarasuk and Yuan, Bandwidth optimal all-reduce,
    2009): of a buffer of B bytes among n ranks (n - 1) / n B in an all-gather, reduce-scatter or all-to-all, twice that
    in an all-reduce; the message in a send."""
    num, size = len(collective.ranks), collective.bytes
    if collective.kind == "send_recv":
        return size * sum(sender == rank for sender in collective.ranks[:-1])
    if collective.split_bytes is not None:
        place = collective.ranks.index(rank)
        return sum(part for other, part in enumerate(collective.split_bytes[place]) if other != place)
    shares = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 2}
    return shares[collective.kind] * size * (num - 1) / num


def volume_sent(run: Run, rank: int, within: Span, *, at_least: int = 4096, group: tuple[int, ...] = ()) -> float:
    """Bytes that a rank sends within a span, in collectives of `at_least` bytes (not losses, norms and flags) and, if
    given, of one group."""
    chosen = (c for c in collectives_of(run, rank, within) if c.bytes >= at_least and group in ((), c.ranks))
    return sum(sent_bytes(c, rank) for c in chosen)


def memory_at(run: Run, rank: int, at_ns: int) -> int:
    """Bytes allocated on a rank's GPU at a time."""
    trace, value = run.ranks[rank], 0
    for sample_ns, allocated in zip(trace.memory_ns, trace.allocated_bytes):
        if sample_ns > at_ns:
            break
        value = allocated
    return value


def peak_within(run: Run, rank: int, within: Span) -> int:
    """The most bytes allocated during a span."""
    trace = run.ranks[rank]
    samples = zip(trace.memory_ns, trace.allocated_bytes)
    inside = [allocated for at_ns, allocated in samples if within.begin_ns <= at_ns <= within.end_ns]
    return max(inside, default=0)


def busy_ns(run: Run, rank: int, within: Span) -> int:
    """Time of a rank's kernels (not its communication) within a span."""
    trace = run.ranks[rank]
    rows = zip(trace.signature, trace.start_ns, trace.end_ns)
    return sum(end - start for number, start, end in rows if number >= 0 and within.begin_ns <= start < within.end_ns)
