"""A recorded run as Chakra traces, one `trace.<rank>.et` per rank, which ASTRA-sim reads as they are.

docs/traces.md lists the attributes, what ASTRA-sim makes of them and what is lost. Files are written node by node.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from phantora.exporters import chakra_schema as schema
from phantora.exporters.chakra_graph import GraphNode, graph_nodes
from phantora.exporters.chakra_metadata import seal, write_metadata
from phantora.exporters.protobuf_rows import VARINT, field_bytes, field_varint, tag, varint

from phantora.trace.model import CollectiveInfo, RankTrace, Run, SignatureInfo

# kind -> how ASTRA-sim can run it. It simulates four collectives only, so those with the nearest traffic stand in: a
# pipelined broadcast moves the buffer once over every link as an all-gather of its parts does, a reduce as a
# reduce-scatter does, and NCCL's barrier is an all-reduce of one element per rank.
_COMM_TYPES = {
    "all_reduce": schema.ALL_REDUCE,
    "all_gather": schema.ALL_GATHER,
    "reduce_scatter": schema.REDUCE_SCATTER,
    "all_to_all": schema.ALL_TO_ALL,
    "broadcast": schema.ALL_GATHER,
    "reduce": schema.REDUCE_SCATTER,
    "barrier": schema.ALL_REDUCE,
}
_GRANULE_BYTES = (
    16  # sizes are divisible by it, so that ASTRA-sim can split them (preferred-dataset-splits) up to 16 times
)
_NUM_TAGS = 500_000_000  # ASTRA-sim takes tags modulo this


def write_chakra(run: Run, directory: Path | str) -> Path:
    """Write DIRECTORY/chakra/trace.<rank>.et and comm_groups.json, and return that folder.

    Work that had not run when the run ended is left out.
    """
    folder = Path(directory) / "chakra"
    folder.mkdir(parents=True, exist_ok=True)
    remove_others(folder, {f"trace.{trace.rank}.et" for trace in run.ranks})
    groups = {str(i + 1): sorted(group.ranks) for i, group in enumerate(run.groups) if len(group.ranks) > 1}
    (folder / "comm_groups.json").write_text(json.dumps(groups) + "\n")
    blobs = [_signature_bytes(signature) for signature in run.signatures]
    for trace in run.ranks:
        with (folder / f"trace.{trace.rank}.et").open("wb", buffering=1 << 20) as file:
            crc_at = write_metadata(run, trace, file)
            _RankWriter(run, trace, blobs, file).write()
        seal(folder / f"trace.{trace.rank}.et", crc_at)
    return folder


def remove_others(folder: Path, names: set[str]) -> None:
    """Traces of an earlier run with more ranks would be read as part of this one."""
    for path in sorted(folder.glob("trace.*.et")):
        if path.name not in names and path.name.split(".")[1].isdecimal():
            path.unlink()


def read_chakra(path: Path | str) -> Iterator[schema.Node]:
    """The nodes of a `.et` file (plain or gzip) in file order; ValueError when the file is cut off or no trace."""
    path = Path(path)
    with path.open("rb") as plain:
        packed = plain.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as file:
        if _read_message(file, path) is None:
            raise ValueError(f"{path} is empty")
        while (message := _read_message(file, path)) is not None:
            yield schema.Node.FromString(message)


def attributes(node: schema.Node) -> dict[str, object]:
    """The attributes of a node by name: plain values, lists as lists."""
    values = {}
    for attribute in node.attr:
        case = attribute.WhichOneof("value")
        value = getattr(attribute, case) if case else None
        values[attribute.name] = list(value.values) if case and case.endswith("_list") else value
    return values


def _read_message(file: BinaryIO, path: Path) -> bytes | None:
    length = shift = 0
    while True:
        byte = file.read(1)
        if not byte and shift == 0:
            return None
        if not byte or shift > 28:
            raise ValueError(f"{path}: no Chakra trace, or cut off")
        length |= (byte[0] & 127) << shift
        shift += 7
        if byte[0] < 128:
            break
    message = file.read(length)
    if len(message) < length:
        raise ValueError(f"{path}: cut off in the middle of a node")
    return message


@dataclass(slots=True)
class _Micros:
    """Whole microseconds whose sums are right: what rounding takes from one piece of work goes to the next."""

    total_ns: dict[object, int] = field(default_factory=dict)

    def next(self, line: object, duration_ns: int) -> int:
        before = self.total_ns.get(line, 0)
        self.total_ns[line] = before + duration_ns
        return (before + duration_ns + 500) // 1000 - (before + 500) // 1000


class _RankWriter:
    def __init__(self, run: Run, trace: RankTrace, blobs: list[tuple[bytes, bytes]], file: BinaryIO) -> None:
        self.run, self.trace, self.blobs, self.file = run, trace, blobs, file
        self.micros = _Micros()

    def write(self) -> None:
        """Write the nodes."""
        for node in graph_nodes(self.run, self.trace):
            self._frame(self._node_bytes(node))

    def _frame(self, message: bytes) -> None:
        self.file.write(varint(len(message)))
        self.file.write(message)

    def _node_bytes(self, node: GraphNode) -> bytes:
        if node.kind == "gap":
            head, blob = _head("host gap", schema.COMP_NODE), _GAP
        elif node.collective < 0:
            head, blob = self.blobs[self.trace.signature[node.row]]
        else:
            head, blob = self._communication_bytes(node)
        deps = b"".join(map(varint, sorted((*node.data_deps, *node.order_deps))))
        micros = self._duration_micros(node)
        return b"".join((
            field_varint(1, node.id), head, field_bytes(5, deps) if deps else b"",
            field_varint(7, micros) if micros else b"", blob, self._row_attributes(node),
        ))  # fmt: skip

    def _duration_micros(self, node: GraphNode) -> int:
        line = "gap" if node.kind == "gap" else (self.trace.device[node.row], self.trace.stream[node.row])
        return self.micros.next(line, node.duration_ns)

    def _row_attributes(self, node: GraphNode) -> bytes:
        """What differs from node to node: where and when it ran, and which edges are not of the run itself."""
        if node.row < 0:
            attrs = _integer("start_ns", node.start_ns) + _integer("duration_ns", node.duration_ns)
        else:
            trace, row = self.trace, node.row
            attrs = b"".join((
                _integer("row", row), _integer("device", trace.device[row]), _integer("stream", trace.stream[row]),
                _integer("issue_ns", trace.issue_ns[row]), _integer("start_ns", trace.start_ns[row]),
                _integer("duration_ns", trace.end_ns[row] - trace.start_ns[row]),
            ))  # fmt: skip
        if node.order_deps:
            values = field_bytes(1, b"".join(map(varint, node.order_deps)))
            attrs += field_bytes(10, field_bytes(1, b"order_only_deps") + field_bytes(14, values))
        return attrs

    def _communication_bytes(self, node: GraphNode) -> tuple[bytes, bytes]:
        info = self.run.collectives[node.collective]
        blob = schema.Node()
        _add(blob, "is_cpu_op", bool_val=False)
        if node.kind == "kernel":
            kind, name = schema.COMP_NODE, f"{info.kind} (one rank)"
            _add(blob, "num_ops", int64_val=1)
            _add(blob, "tensor_size", uint64_val=max(info.bytes, 1))
        elif node.kind == "collective":
            kind, name = schema.COMM_COLL_NODE, info.kind
            _add(blob, "comm_type", int64_val=_COMM_TYPES[info.kind])
            _add(blob, "comm_size", int64_val=comm_size_bytes(info))
            _add(blob, "pg_name", string_val=str(info.group + 1))
        else:
            kind, name = self._message(blob, node, info)
        self._describe(blob, node.collective, info)
        return _head(name, kind), blob.SerializeToString()

    def _message(self, blob: schema.Node, node: GraphNode, info: CollectiveInfo) -> tuple[int, str]:
        sends = node.kind == "send"
        source, target = (self.trace.rank, node.peer) if sends else (node.peer, self.trace.rank)
        size = info.bytes if info.kind == "send_recv" else -(-info.bytes // len(info.ranks))
        _add(blob, "comm_size", int64_val=max(size, 1))
        _add(blob, "comm_src", int32_val=source)
        _add(blob, "comm_dst", int32_val=target)
        _add(blob, "comm_tag", int32_val=node.collective % _NUM_TAGS)
        name = f"send to {target}" if sends else f"recv from {source}"
        return (schema.COMM_SEND_NODE if sends else schema.COMM_RECV_NODE), name

    def _describe(self, blob: schema.Node, number: int, info: CollectiveInfo) -> None:
        group = self.run.groups[info.group].name if 0 <= info.group < len(self.run.groups) else ""
        _add(blob, "op", string_val=info.kind)
        _add(blob, "bytes", int64_val=info.bytes)
        _add(blob, "dtype", string_val=info.dtype)
        _add(blob, "root", int64_val=info.root)
        _add(blob, "group", string_val=group)
        _add(blob, "algorithm", string_val=info.algorithm)
        _add(blob, "collective", int64_val=number)
        _add(blob, "collective_start_ns", int64_val=info.start_ns)
        _add(blob, "collective_end_ns", int64_val=info.end_ns)


def comm_size_bytes(info: CollectiveInfo) -> int:
    """ASTRA-sim's comm_size, the bytes of one rank's input: > 0, divisible by the group where it is divided."""
    size, granule = len(info.ranks), _GRANULE_BYTES
    if info.kind == "barrier":
        return granule * size
    if info.kind in ("all_gather", "broadcast"):
        return max(-(-info.bytes // (size * granule)) * granule, granule)
    return max(-(-info.bytes // (size * granule)) * granule * size, granule * size)


# The beginning of an attribute of this name with an int64_val (field 9).
_INTEGER_STARTS = {
    name: field_bytes(1, name.encode()) + tag(9, VARINT)
    for name in ("row", "device", "stream", "issue_ns", "start_ns", "duration_ns")
}


def _add(node: schema.Node, name: str, **value: object) -> None:
    node.attr.add(name=name, **value)


def _integer(name: str, value: int) -> bytes:
    """An attribute with an int64_val."""
    body = _INTEGER_STARTS[name] + varint(value & (1 << 64) - 1)
    return b"\x52" + varint(len(body)) + body  # field 10, a message


def _head(name: str, kind: int) -> bytes:
    return schema.Node(name=name, type=kind).SerializeToString()


def _signature_bytes(signature: SignatureInfo) -> tuple[bytes, bytes]:
    """(name and type, all that follows from the signature) of a kernel's node."""
    node = schema.Node()
    for side, specs in ((node.inputs, signature.inputs), (node.outputs, signature.outputs)):
        side.shapes = json.dumps([list(shape) for _, shape in specs])
        side.types = json.dumps([dtype for dtype, _ in specs])
    _add(node, "is_cpu_op", bool_val=False)
    _add(node, "num_ops", int64_val=max(signature.flops, 1))
    _add(node, "tensor_size", uint64_val=max(signature.bytes, 1))
    _add(node, "op", string_val=signature.name)
    _add(node, "family", string_val=signature.family)
    _add(node, "bytes", int64_val=signature.bytes)
    _add(node, "flops", int64_val=signature.flops)
    _add(node, "num_kernels", int64_val=signature.num_kernels)
    _add(node, "price_source", string_val=signature.source)
    return _head(signature.name, schema.COMP_NODE), node.SerializeToString()


def _gap_bytes() -> bytes:
    node = schema.Node()
    _add(node, "is_cpu_op", bool_val=False)
    _add(node, "num_ops", int64_val=1)
    _add(node, "tensor_size", uint64_val=1)
    _add(node, "op", string_val="host_gap")
    return node.SerializeToString()


_GAP = _gap_bytes()
