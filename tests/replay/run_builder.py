"""Small runs made by hand: rows, waits and collectives one by one, without any time but that of their issue."""

from __future__ import annotations

from array import array

from phantora.cluster import Placement, load_cluster
from phantora.network.operation import CommOperation
from phantora.network.simulator import exclusive_ns
from phantora.trace.model import CollectiveInfo, GroupInfo, RankTrace, Run, SignatureInfo

CLUSTER = load_cluster("dgx-h100")
MIB = 1 << 20


class RunBuilder:
    """Durations and times in ns. Rows get the numbers that the methods return.

    Kernels take what their signatures say, whatever is recorded of them: a run with (no) contention is one that says
    so. are_measured: they take what was recorded.
    """

    def __init__(self, world_size: int, source: str = "recorded", are_measured: bool = False) -> None:
        contention = None if are_measured else (1.0, 1.0)
        self.run = Run(["test"], CLUSTER, world_size, world_size, source=source, contention=contention)
        self.run.ranks = [RankTrace(rank) for rank in range(world_size)]

    def group(self, name: str, ranks: tuple[int, ...]) -> int:
        self.run.groups.append(GroupInfo(name, ranks))
        return len(self.run.groups) - 1

    def collective(self, group: int, kind: str = "all_reduce", size_bytes: int = MIB) -> int:
        ranks = self.run.groups[group].ranks
        self.run.collectives.append(CollectiveInfo(kind, group, ranks, size_bytes, "float32"))
        return len(self.run.collectives) - 1

    def kernel(
        self,
        rank: int,
        issue_ns: int,
        duration_ns: int,
        *,
        stream: int = 0,
        device: int = 0,
        thread: int = 0,
        after: tuple[int, ...] = (),
    ) -> int:
        number = len(self.run.signatures)
        self.run.signatures.append(SignatureInfo(f"op{number}", (), (), duration_ns, 1, "measured", 0, 0, "gemm"))
        return self._row(rank, number, issue_ns, stream, device, thread, after)

    def launch(
        self, rank: int, issue_ns: int, collectives: tuple[int, ...], *, stream: int = 7, after: tuple[int, ...] = ()
    ) -> int:
        trace = self.run.ranks[rank]
        trace.work_collectives.append(collectives)
        return self._row(rank, -len(trace.work_collectives), issue_ns, stream, 0, 0, after)

    def _row(
        self, rank: int, signature: int, issue_ns: int, stream: int, device: int, thread: int, after: tuple[int, ...]
    ) -> int:
        trace = self.run.ranks[rank]
        row = len(trace.signature)
        for name, value in (
            ("device", device),
            ("stream", stream),
            ("signature", signature),
            ("issue_ns", issue_ns),
            ("start_ns", -1),
            ("end_ns", -1),
            ("thread", thread),
        ):
            getattr(trace, name).append(value)
        for earlier in after:
            trace.dependent.append(row)
            trace.dependency.append(earlier)
        return row

    def wait(
        self, rank: int, begin_ns: int, end_ns: int, *, rows: tuple[int, ...] = (), peers: tuple[tuple[int, int], ...] = (),
        delay_ns: int = 0, reason: str = "device", thread: int = 0,
    ) -> tuple[int, int]:  # fmt: skip
        """(rank, entry), as peers name it."""
        trace = self.run.ranks[rank]
        for name, value in (
            ("begin_ns", begin_ns),
            ("end_ns", end_ns),
            ("position", len(trace.signature)),
            ("thread", thread),
            ("delay_ns", delay_ns),
        ):
            getattr(trace, f"wait_{name}").append(value)
        trace.wait_reason.append(reason)
        trace.wait_rows.append(rows)
        trace.wait_peers.append(peers)
        return rank, len(trace.wait_reason) - 1

    def recorded(self, rank: int, row: int, start_ns: int, end_ns: int) -> None:
        self.run.ranks[rank].start_ns[row], self.run.ranks[rank].end_ns[row] = start_ns, end_ns


def collective_ns(run: Run, number: int) -> int:
    """Alone on the cluster of these tests."""
    info = run.collectives[number]
    operation = CommOperation(kind=info.kind, ranks=info.ranks, bytes=info.bytes, dtype=info.dtype)
    return exclusive_ns(CLUSTER, Placement(CLUSTER, 1, run.world_size), operation)


def spans(trace: RankTrace) -> list[tuple[int, int]]:
    return list(zip(trace.start_ns, trace.end_ns))


def nodes(trace: RankTrace, first: int = 100) -> None:
    """Give the rows ids, as an importer does."""
    trace.node = array("Q", (first + row for row in range(len(trace.signature))))
