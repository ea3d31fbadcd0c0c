"""Which nodes of different ranks are one collective, or one message.

Collectives: the k-th of a group on one rank, by id, meets the k-th of every other member. Messages: the k-th send meets
the k-th receive of the same (tag, source, destination, size), as in ASTRA-sim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phantora.errors import UserError
from phantora.importers.chakra_file import ChakraNode
from phantora.importers.chakra_groups import Groups
from phantora.importers.chakra_rank import COLLECTIVE, SEND, RankGraph
from phantora.importers.report import ImportReport
from phantora.trace.model import CollectiveInfo, GroupInfo, Run

# CollectiveCommType of et_def.proto -> network.operation.Kind
_KINDS = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
_WORLD = ("", "0")  # pg_name of the whole world, for ASTRA-sim
_NO_SIZE = -1
_MAX_BYTES = 1 << 44  # 16 TiB; larger sizes are taken for garbage


@dataclass(slots=True)
class _Part:
    rank: int
    row: int
    node: ChakraNode
    kind: str
    bytes: int
    root: int


class Matching:
    """numbers: (rank, row) -> index in Run.collectives."""

    def __init__(self, world_size: int, groups: Groups, groups_are_given: bool, report: ImportReport) -> None:
        self.numbers: dict[tuple[int, int], int] = {}
        self._world = tuple(range(world_size))
        self._groups, self._are_given, self._report = groups, groups_are_given, report
        self._collectives: dict[str, dict[int, list[_Part]]] = {}  # pg_name -> rank -> in order of ids
        self._messages: dict[tuple[int, int, int, int], tuple[list[_Part], list[_Part]]] = {}  # sends, receives

    def add(self, graph: RankGraph) -> None:
        """Take in the communication of one rank."""
        for row, node in sorted(enumerate(graph.rows), key=lambda entry: entry[1].id):
            if not graph.is_communication(node):
                if node.type >= SEND:
                    self._report.guess(
                        "communication nodes of the CPU: as CPU work of their duration", _place(graph, node)
                    )
            elif node.type == COLLECTIVE:
                self._add_collective(graph, row, node)
            else:
                self._add_message(graph, row, node)

    def match(self, run: Run, graphs: Sequence[RankGraph]) -> None:
        """Fill run.groups and run.collectives, and `numbers`."""
        for name, by_rank in self._collectives.items():
            self._match_collectives(run, name, by_rank, graphs)
        for key, (sends, receives) in sorted(self._messages.items()):
            self._match_messages(run, key, sends, receives)

    # -------------------------------------------------------------- collectives

    def _add_collective(self, graph: RankGraph, row: int, node: ChakraNode) -> None:
        attributes = node.attributes
        kind, size = attributes.get("comm_type"), attributes.get("comm_size")
        if type(kind) is not int or not 0 <= kind < len(_KINDS):
            self._report.guess("collectives of no known comm_type: as work of their duration", _place(graph, node))
            return
        if type(size) is not int or not 0 <= size < _MAX_BYTES:
            size = 0 if _KINDS[kind] == "barrier" else _NO_SIZE
        dims = attributes.get("involved_dim")
        name = attributes.get("pg_name", "")
        name = name if isinstance(name, str) else str(name)
        if name in _WORLD and isinstance(dims, tuple) and not all(dims):
            self._report.guess(
                "collectives of some dimensions of ASTRA-sim's network: as of all ranks", _place(graph, node)
            )
        root = attributes.get("root")
        part = _Part(graph.rank, row, node, _KINDS[kind], size, root if type(root) is int and root >= 0 else 0)
        self._collectives.setdefault(name, {}).setdefault(graph.rank, []).append(part)

    def _match_collectives(
        self, run: Run, name: str, by_rank: Mapping[int, list[_Part]], graphs: Sequence[RankGraph]
    ) -> None:
        ranks = self._members(name, by_rank, graphs)
        if len(ranks) < 2:
            timed = [part for parts in by_rank.values() for part in parts if part.node.duration_micros]
            if timed:
                self._report.guess(
                    "collectives whose other ranks have no trace: as work of their duration",
                    f"group {name!r}",
                    len(timed),
                )
                return
        group = len(run.groups)
        run.groups.append(GroupInfo(name or "world", ranks))
        self._check_sizes(by_rank, graphs)
        for k in range(max(map(len, by_rank.values()))):
            parts = [parts[k] for _, parts in sorted(by_rank.items()) if k < len(parts)]
            self._check_alike(graphs, name, k, parts)
            size = max(part.bytes for part in parts)
            if parts[0].kind in ("all_gather", "gather"):
                size *= len(ranks)  # Chakra counts what one rank puts in
            root = min(parts[0].root, len(ranks) - 1)
            self._put(run, CollectiveInfo(parts[0].kind, group, ranks, size, "uint8", root), parts)

    @staticmethod
    def _check_sizes(by_rank: Mapping[int, list[_Part]], graphs: Sequence[RankGraph]) -> None:
        for part in (part for _, parts in sorted(by_rank.items()) for part in parts):
            if part.bytes == _NO_SIZE:
                size = part.node.attributes.get("comm_size")
                what = f"must be an integer from 0 to {_MAX_BYTES - 1}, not {size!r:.40}"
                what = "is missing" if size is None else what
                raise UserError(f"{_place(graphs[part.rank], part.node)}, rank {part.rank}: comm_size {what}")

    def _members(self, name: str, by_rank: Mapping[int, Any], graphs: Sequence[RankGraph]) -> tuple[int, ...]:
        if name in self._groups:
            ranks = self._groups[name]
            outside = [rank for rank in by_rank if rank not in ranks]
            if outside:
                node = by_rank[outside[0]][0].node
                raise UserError(
                    f"{_place(graphs[outside[0]], node)}: rank {outside[0]} is not in group {name!r} {list(ranks)}"
                )
            return ranks
        if name in _WORLD:
            return self._world
        if self._are_given:
            first = min(by_rank)
            raise UserError(
                f"{_place(graphs[first], by_rank[first][0].node)}: group {name!r} is not among {sorted(self._groups)}"
            )
        self._report.guess("groups that nothing describes: all ranks that use their name", f"group {name!r}")
        return tuple(sorted(by_rank))

    def _check_alike(self, graphs: Sequence[RankGraph], name: str, k: int, parts: Sequence[_Part]) -> None:
        first = parts[0]
        for other in parts[1:]:
            if other.kind != first.kind:
                raise UserError(
                    f"collective {k + 1} of group {name or 'world'!r} differs: {first.kind} on rank {first.rank} "
                    f"(node {first.node.id}), {other.kind} on rank {other.rank} (node {other.node.id})"
                )
            if other.bytes != first.bytes and first.kind != "all_to_all":
                self._report.doubt(
                    "collectives whose ranks have different sizes (the largest counts)",
                    _place(graphs[other.rank], other.node),
                )
                return

    # -------------------------------------------------------------- messages

    def _add_message(self, graph: RankGraph, row: int, node: ChakraNode) -> None:
        is_send = node.type == SEND
        values = [node.attributes.get(name) for name in ("comm_src", "comm_dst", "comm_tag", "comm_size")]
        own = 0 if is_send else 1
        if values[own] is None:
            values[own] = graph.rank
        if values[1 - own] is None:
            self._report.guess(
                "messages that do not name their other end: as work of their duration", _place(graph, node)
            )
            return
        values = [0 if value is None else value for value in values]
        if any(type(value) is not int for value in values) or not 0 <= values[3] < _MAX_BYTES:
            raise UserError(
                f"{_place(graph, node)}: comm_src, comm_dst, comm_tag and comm_size must be integers: {values}"
            )
        source, target, tag, size = values
        if values[own] != graph.rank:
            raise UserError(
                f"{_place(graph, node)}: {'comm_src' if is_send else 'comm_dst'} is {values[own]}, "
                f"but this is rank {graph.rank}"
            )
        if values[1 - own] not in self._world:
            raise UserError(
                f"{_place(graph, node)}: names rank {values[1 - own]}, but there are {len(self._world)} traces"
            )
        part = _Part(graph.rank, row, node, "send_recv", size, 0)
        self._messages.setdefault((source, target, tag, size), ([], []))[0 if is_send else 1].append(part)

    def _match_messages(
        self, run: Run, key: tuple[int, int, int, int], sends: Sequence[_Part], receives: Sequence[_Part]
    ) -> None:
        """A message without its other end is kept: whoever replays the run says that it can never arrive."""
        source, target, tag, size = key
        group = len(run.groups)
        run.groups.append(GroupInfo(f"{source}->{target} tag {tag} ({size} B)", (source, target)))
        for k in range(max(len(sends), len(receives))):
            parts = [ends[k] for ends in (sends, receives) if k < len(ends)]
            if source == target:
                for part in parts:  # a copy on the device for each end
                    self._put(run, CollectiveInfo("send_recv", group, (source, target), size, "uint8"), [part])
                continue
            self._put(run, CollectiveInfo("send_recv", group, (source, target), size, "uint8"), parts)
        self._report.doubt("sends that nobody receives", f"{source}->{target} tag {tag}", len(sends) - len(receives))
        self._report.doubt("receives that nobody sends", f"{source}->{target} tag {tag}", len(receives) - len(sends))

    def _put(self, run: Run, info: CollectiveInfo, parts: Sequence[_Part]) -> None:
        for part in parts:
            self.numbers[part.rank, part.row] = len(run.collectives)
        run.collectives.append(info)


def _place(graph: RankGraph, node: ChakraNode) -> str:
    return f"{graph.file.path}: node {node.id}"
