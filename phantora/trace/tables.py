"""A Run as named columns of integers and plain values, and back: what a file must hold to be read with nothing lost.

Only `wall_s` is left out: it differs between equal runs. Columns are int64; ends are kept as durations, texts as
numbers in a table, lists of different lengths as their lengths and all their members.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from phantora.trace.columns import as_int64
from phantora.trace.model import CollectiveInfo, GroupInfo, RankTrace, Run, SignatureInfo

Columns = dict[str, np.ndarray]

# column of the file -> field of RankTrace that it is as it stands
_PLAIN = {
    "rows.device": "device", "rows.stream": "stream", "rows.signature": "signature", "rows.issue_ns": "issue_ns",
    "rows.start_ns": "start_ns", "rows.thread": "thread", "edges.row": "dependent", "edges.waits_for": "dependency",
    "memory.device": "memory_device", "memory.ns": "memory_ns", "memory.thread": "memory_thread",
    "memory.allocated_bytes": "allocated_bytes", "memory.reserved_bytes": "reserved_bytes", "waits.begin_ns": "wait_begin_ns",
    "waits.position": "wait_position", "waits.thread": "wait_thread", "waits.delay_ns": "wait_delay_ns", "marks.ns": "mark_ns",
    "marks.depth": "mark_depth", "rows.node": "node",
}  # fmt: skip


class Texts:
    """Numbers for texts, in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def column(self, texts: Iterable[str]) -> np.ndarray:
        return _ints(self.numbers.setdefault(text, len(self.numbers)) for text in texts)

    @property
    def table(self) -> list[str]:
        return list(self.numbers)


def rank_tables(trace: RankTrace) -> tuple[Columns, dict[str, Any]]:
    """(columns, plain values) of one rank."""
    columns = {name: as_int64(getattr(trace, field)) for name, field in _PLAIN.items()}
    columns["rows.duration_ns"] = as_int64(trace.end_ns) - columns["rows.start_ns"]
    columns["waits.duration_ns"] = as_int64(trace.wait_end_ns) - columns["waits.begin_ns"]
    reasons, names = Texts(), Texts()
    columns["waits.reason"] = reasons.column(trace.wait_reason)
    columns["marks.name"] = names.column(trace.mark_name)
    _put_lists(columns, "waits.rows", trace.wait_rows)
    _put_lists(columns, "waits.peer_ranks", [[rank for rank, _ in peers] for peers in trace.wait_peers])
    columns["waits.peer_entries"] = _ints(entry for peers in trace.wait_peers for _, entry in peers)
    _put_lists(columns, "communication.collectives", trace.work_collectives)
    plain = {
        "rank": trace.rank, "host_end_ns": trace.host_end_ns, "exit_code": trace.exit_code, "wait_reasons": reasons.table,
        "mark_names": names.table, "comm_streams": [[stream, group] for stream, group in trace.comm_streams.items()],
    }  # fmt: skip
    return columns, plain


def trace_from(columns: Mapping[str, np.ndarray], plain: Mapping[str, Any]) -> RankTrace:
    """The rank that `rank_tables` described. ValueError, KeyError or IndexError when the tables do not fit together."""
    trace = RankTrace(plain["rank"], host_end_ns=plain["host_end_ns"], exit_code=plain["exit_code"])
    for name, field in _PLAIN.items():
        setattr(trace, field, _column(columns[name], getattr(trace, field).typecode))
    trace.end_ns = _column(columns["rows.start_ns"] + columns["rows.duration_ns"], "q")
    trace.wait_end_ns = _column(columns["waits.begin_ns"] + columns["waits.duration_ns"], "q")
    trace.wait_reason = [plain["wait_reasons"][i] for i in columns["waits.reason"].tolist()]
    trace.mark_name = [plain["mark_names"][i] for i in columns["marks.name"].tolist()]
    trace.wait_rows = _lists(columns, "waits.rows")
    ranks, entries = _lists(columns, "waits.peer_ranks"), iter(columns["waits.peer_entries"].tolist())
    trace.wait_peers = [tuple((rank, next(entries)) for rank in peers) for peers in ranks]
    trace.work_collectives = _lists(columns, "communication.collectives")
    trace.comm_streams = {stream: group for stream, group in plain["comm_streams"]}
    _check(trace)
    return trace


def run_tables(run: Run, cluster: Any) -> tuple[Columns, dict[str, Any]]:
    """(columns, plain values) of what the ranks share. cluster: the run's cluster as a plain value."""
    texts, rank_lists = Texts(), {}
    infos = run.collectives
    columns = {
        "collectives.kind": texts.column(info.kind for info in infos),
        "collectives.group": _ints(info.group for info in infos),
        "collectives.ranks": _ints(rank_lists.setdefault(info.ranks, len(rank_lists)) for info in infos),
        "collectives.bytes": _ints(info.bytes for info in infos),
        "collectives.dtype": texts.column(info.dtype for info in infos),
        "collectives.root": _ints(info.root for info in infos),
        "collectives.start_ns": _ints(info.start_ns for info in infos),
        "collectives.duration_ns": _ints(info.end_ns - info.start_ns for info in infos),
        "collectives.algorithm": texts.column(info.algorithm for info in infos),
        "collectives.stack": texts.column(info.stack for info in infos),
    }
    plain = {
        "command": run.command, "cluster": cluster, "world_size": run.world_size, "nproc_per_node": run.nproc_per_node,
        "virtual_ns": run.virtual_ns, "complete": run.complete, "error": run.error, "stand_ins": run.stand_ins,
        "notes": run.notes, "source": run.source, "contention": run.contention,
        "texts": texts.table, "rank_lists": [list(ranks) for ranks in rank_lists],
        "split_bytes": {str(i): info.split_bytes for i, info in enumerate(infos) if info.split_bytes is not None},
        "groups": [[group.name, list(group.ranks)] for group in run.groups],
        "signatures": [_signature_values(signature) for signature in run.signatures],
    }  # fmt: skip
    return columns, plain


def run_from(
    columns: Mapping[str, np.ndarray], plain: Mapping[str, Any], cluster: object, ranks: list[RankTrace]
) -> Run:
    """The run that `run_tables` described, with these ranks. ValueError, KeyError, IndexError or TypeError as
    trace_from."""
    run = Run(plain["command"], cluster, plain["world_size"], plain["nproc_per_node"], ranks=ranks)
    for name in ("virtual_ns", "complete", "error", "stand_ins", "notes", "source"):
        setattr(run, name, plain[name])
    run.contention = None if plain["contention"] is None else tuple(plain["contention"])
    run.groups = [GroupInfo(name, tuple(members)) for name, members in plain["groups"]]
    run.signatures = [_signature(values) for values in plain["signatures"]]
    texts, rank_lists = plain["texts"], [tuple(members) for members in plain["rank_lists"]]
    names = ("kind", "group", "ranks", "bytes", "dtype", "root", "start_ns", "duration_ns", "algorithm", "stack")
    lists = [columns[f"collectives.{name}"].tolist() for name in names]
    for kind, group, members, size, dtype, root, start, duration, algorithm, stack in zip(*lists, strict=True):
        run.collectives.append(
            CollectiveInfo(
                texts[kind], group, rank_lists[members], size, texts[dtype], root, start, start + duration, texts[algorithm],
                texts[stack],
            )
        )  # fmt: skip
    for number, splits in plain["split_bytes"].items():
        run.collectives[int(number)].split_bytes = tuple(tuple(row) for row in splits)
    _check_run(run)
    return run


# -------------------------------------------------------------- parts


def _ints(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)


def _put_lists(columns: Columns, name: str, lists: Sequence[Sequence[int]]) -> None:
    columns[f"{name}.count"] = _ints(len(members) for members in lists)
    columns[name] = _ints(member for members in lists for member in members)


def _lists(columns: Mapping[str, np.ndarray], name: str) -> list[tuple[int, ...]]:
    counts, members = columns[f"{name}.count"], columns[name].tolist()
    if len(counts) and (int(counts.min()) < 0 or int(counts.sum()) != len(members)):
        raise ValueError(f"{name}: the lengths do not add up to {len(members)}")
    ends = np.cumsum(counts).tolist()
    return [tuple(members[end - count : end]) for end, count in zip(ends, counts.tolist())]


def _column(values: np.ndarray, typecode: str) -> array:
    if typecode == "Q":
        return array("Q", values.astype(np.uint64).tobytes())
    found = array(typecode)
    found.frombytes(values.astype(np.dtype(typecode)).tobytes())
    return found


def _signature_values(s: SignatureInfo) -> list[Any]:
    specs = [[[dtype, list(shape)] for dtype, shape in side] for side in (s.inputs, s.outputs)]
    return [s.name, *specs, s.duration_ns, s.num_kernels, s.source, s.flops, s.bytes, s.family, s.call, list(s.draw)]


def _signature(values: list[Any]) -> SignatureInfo:
    name, inputs, outputs, *rest = values
    draw = tuple(rest.pop()) if len(rest) > 7 else ()
    sides = [tuple((dtype, tuple(shape)) for dtype, shape in side) for side in (inputs, outputs)]
    return SignatureInfo(name, *sides, *rest, draw=draw)


_SAME_LENGTH: tuple[tuple[str, ...], ...] = (
    ("device", "stream", "signature", "issue_ns", "start_ns", "end_ns", "thread"),
    ("dependent", "dependency"),
    ("memory_device", "memory_ns", "memory_thread", "allocated_bytes", "reserved_bytes"),
    (
        "wait_begin_ns", "wait_end_ns", "wait_reason", "wait_position", "wait_thread", "wait_rows", "wait_peers",
        "wait_delay_ns",
    ),
    ("mark_ns", "mark_name", "mark_depth"),
)  # fmt: skip


def _check(trace: RankTrace) -> None:
    for names in _SAME_LENGTH:
        lengths = {len(getattr(trace, name)) for name in names}
        if len(lengths) > 1 and not (names[0].startswith(("wait", "memory", "device")) and _may_lack(trace, names)):
            raise ValueError(f"columns {', '.join(names)} have different lengths {sorted(lengths)}")
    num_rows = len(trace.signature)
    _within("dependent", trace.dependent, num_rows)
    _within("dependency", trace.dependency, num_rows)
    _within("wait_rows", [row for rows in trace.wait_rows for row in rows], num_rows)
    _within("signature", [-1 - s for s in trace.signature if s < 0], len(trace.work_collectives))


def _may_lack(trace: RankTrace, names: tuple[str, ...]) -> bool:
    """Optional columns (threads, what a wait waited for) may be empty as a whole."""
    lengths = {len(getattr(trace, name)) for name in names}
    return len(lengths) == 2 and 0 in lengths


def _check_run(run: Run) -> None:
    _within(
        "collective", [n for t in run.ranks for numbers in t.work_collectives for n in numbers], len(run.collectives)
    )
    _within("group", [info.group for info in run.collectives], len(run.groups))
    for trace in run.ranks:
        _within("signature", [s for s in trace.signature if s >= 0], len(run.signatures))
        for rank, entry in (peer for peers in trace.wait_peers for peer in peers):
            if not (0 <= rank < len(run.ranks) and 0 <= entry < len(run.ranks[rank].wait_reason)):
                raise ValueError(f"rank {trace.rank} waits for entry {entry} of rank {rank}, which is not there")


def _within(what: str, values: Iterable[int], count: int) -> None:
    for value in values:
        if not 0 <= value < count:
            raise ValueError(f"{what} {value} is not below {count}")
