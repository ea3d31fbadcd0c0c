"""What one rank has to show of its device: its work as arrays, by track, and the titles of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from phantora.cluster.placement import Placement
from phantora.cluster.spec import Cluster
from phantora.errors import UserError
from phantora.trace.columns import as_int64, finished_rows
from phantora.trace.model import HOST_DEVICE, NO_STREAM, RankTrace, Run


@dataclass(frozen=True, slots=True)
class Columns:
    """The work columns of a rank as arrays. finished: rows that ran to their end, ordered by start."""

    trace: RankTrace
    device: np.ndarray
    stream: np.ndarray
    signature: np.ndarray
    issue_ns: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    finished: np.ndarray

    @classmethod
    def of(cls, trace: RankTrace) -> Columns:
        names = ("device", "stream", "signature", "issue_ns", "start_ns", "end_ns")
        columns = [as_int64(getattr(trace, name)) for name in names]
        rows = finished_rows(trace)
        return cls(trace, *columns, rows[np.argsort(columns[4][rows], kind="stable")])

    @property
    def several_devices(self) -> bool:
        return len(self.device) > 0 and bool((self.device != self.device[0]).any())

    def tracks(self) -> list[tuple[int, int, bool, np.ndarray]]:
        """(device, stream, communication, rows by start): kernels first, so that they stand above communication."""
        rows = self.finished
        keys = np.stack([self.signature[rows] < 0, self.device[rows], self.stream[rows]], axis=1).astype(np.int64)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        inverse = inverse.reshape(-1)
        return [
            (int(device), int(stream), bool(communication), rows[inverse == i])
            for i, (communication, device, stream) in enumerate(distinct)
        ]

    def held_up(self) -> list[tuple[int, int]]:
        """Pairs (dependent, dependency) where the dependent started at the instant the dependency ended."""
        dependent, dependency = as_int64(self.trace.dependent), as_int64(self.trace.dependency)
        begin, end = self.start_ns[dependent], self.end_ns[dependency]
        real = (begin == end) & (begin > self.issue_ns[dependent]) & (end > self.start_ns[dependency])
        real &= self.end_ns[dependent] >= 0
        return list(zip(dependent[real].tolist(), dependency[real].tolist()))


def last_ns(run: Run, ranks: list[RankTrace]) -> int:
    """The latest time that a trace of these ranks can hold."""
    lasts = [run.virtual_ns]
    for trace in ranks:
        lasts.append(trace.host_end_ns)
        for name in ("issue_ns", "end_ns", "memory_ns", "wait_end_ns", "mark_ns"):
            column = as_int64(getattr(trace, name))
            lasts.append(int(column.max()) if len(column) else 0)
    return max(lasts)


def location(run: Run, rank: int) -> tuple[int, int]:
    """(node, GPU of the node) of a rank, on the cluster where that is known."""
    per_node = max(run.nproc_per_node, 1)
    if not isinstance(run.cluster, Cluster):
        return divmod(rank, per_node)
    placement = Placement(run.cluster, -(-run.world_size // per_node), per_node)
    return divmod(placement.gpu(rank), run.cluster.gpus_per_node)


def rank_title(run: Run, rank: int) -> str:
    """'rank 03 (host 0, GPU 3)'; padded, as an older user interface puts ranks with equally many slices in order of
    names."""
    digits = len(str(max(run.world_size - 1, 0)))
    if run.nproc_per_node < 1:
        return f"rank {rank:0{digits}d}"  # a foreign trace does not say where
    node, gpu = location(run, rank)
    return f"rank {rank:0{digits}d} (host {node}, GPU {gpu})"


def chosen_ranks(run: Run, ranks: Sequence[int] | None) -> list[RankTrace]:
    """The traces of `ranks` (None: all) in order; UserError for one that is not in the run."""
    known = {trace.rank: trace for trace in run.ranks}
    missing = [rank for rank in ranks or () if rank not in known]
    if missing:
        raise UserError(f"no rank {missing[0]} in this run (ranks: {', '.join(map(str, sorted(known)))})")
    return [known[rank] for rank in sorted(known if ranks is None else set(ranks))]


def tells_launches(ranks: Sequence[RankTrace]) -> bool:
    """Whether it is known when work was launched: some traces tell of no host, some have no times at all."""
    issued = [trace.issue_ns for trace in ranks if len(trace.issue_ns)]
    return all(min(column) >= 0 for column in issued) and any(
        len(finished_rows(trace)) for trace in ranks if len(trace.issue_ns)
    )


def wait_name(rank: int) -> str:
    """Title of the part of a collective that passes before its last member comes."""
    return f"wait for rank {rank}"


def stream_title(trace: RankTrace, device: int | None, stream: int, communication: bool) -> str:
    """Title of a stream's row; device: only when it is not the rank's one GPU.

    An older user interface (52) puts the rows of a process in order of their titles: streams come before NIC, NVLink,
    memory.
    """
    title = {0: "GPU stream 0 (default)", NO_STREAM: "GPU, no stream"}.get(stream, f"GPU stream {stream}")
    if device == HOST_DEVICE:
        title = "CPU" if stream == NO_STREAM else f"CPU stream {stream}"
    elif device is not None:
        title = title.replace("GPU", f"GPU {device}", 1)
    if not communication:
        return title
    group = trace.comm_streams.get(stream)
    return f"{title}: nccl" if group is None else f"{title}: nccl group {group}"
