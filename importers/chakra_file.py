"""Reads Chakra traces (.et) quickly, without the protobuf package: one `ChakraFile` per rank, with its `ChakraNode`s.

    files = read_chakra("runs/mine/chakra/trace")        # PREFIX, a folder of PREFIX.RANK.et, or the folder of a run
    files[0].nodes[3].attributes["comm_size"]            # any attribute, also unknown ones, by name
    files[0].column("comm_size", default=0)              # one value per node

Ranks mostly do the same: a node whose bytes were seen before is the same object again (and has the same `serial`), so
that what is derived from a node can be kept by its serial, and a file whose bytes were seen before has the same `nodes`
and the same `content`. Nodes keep the order of the file; nothing is checked beyond the format: duplicate ids, absent
parents, cycles and unknown types are for the caller to judge. What is malformed is a UserError with file, byte offset
and reason.

Format: repeat {varint length, message}; the first message is GlobalMetadata, each other one a Node. Files may be
gzipped. Source: mlcommons/chakra, schema/protobuf/et_def.proto 0.0.4 and src/third_party/utils/protolib.py.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field as data_field
from pathlib import Path
from typing import NamedTuple

from phantora.errors import UserError
from phantora.importers.chakra_names import meant
from phantora.importers.chakra_wire import (
    BYTES,
    VARINT,
    Malformed,
    Value,
    attribute,
    field,
    text,
    unsigned_list,
    varint,
)

# distinct ones kept for comparison; where times differ in every node, they would fill the memory
_NODES_KEPT, _ATTRIBUTES_KEPT = 300_000, 100_000
_NAMES_KEPT = 4096
_EXPANSION, _EXPANDED_BYTES = 300, 1 << 26  # a gzipped file may grow 300-fold, or to 64 MiB
_FILE_NAME = re.compile(r"(.*)\.(\d{1,9})\.et(\.gz)?", re.DOTALL)
_Tensors = tuple[str, str, str]


class ChakraNode(NamedTuple):
    """One node. `serial` numbers the distinct nodes of a reader; times are as in the file, in microseconds."""

    serial: int
    id: int
    type: int
    """NodeType: 1 METADATA, 2 MEM_LOAD, 3 MEM_STORE, 4 COMP, 5 COMM_SEND, 6 COMM_RECV, 7 COMM_COLL"""
    name: str
    data_deps: tuple[int, ...]
    ctrl_deps: tuple[int, ...]
    start_micros: int
    duration_micros: int
    attributes: dict[str, Value]
    """not to be changed: equal nodes share it. Of several attributes of one name the last counts"""
    inputs: _Tensors | None
    """(values, shapes, types), as JSON texts"""
    outputs: _Tensors | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChakraFile:
    """The trace of one rank."""

    path: Path
    content: int
    """number of the distinct contents of a reader: files with equal bytes share it"""
    version: str
    metadata: dict[str, Value]
    """the attributes of GlobalMetadata"""
    nodes: tuple[ChakraNode, ...]

    def column(self, name: str, default: Value = None) -> list[Value]:
        """One value per node: a field of `ChakraNode` if it has one of that name, else the attribute, or `default`."""
        if name in ChakraNode._fields:
            return [getattr(node, name) for node in self.nodes]
        return [node.attributes.get(name, default) for node in self.nodes]


@dataclass(slots=True)
class ChakraReader:
    """Reads files one by one and shares what is equal between them."""

    _nodes: dict[bytes, ChakraNode] = data_field(default_factory=dict)
    _attributes: dict[bytes, tuple[str, Value]] = data_field(default_factory=dict)
    _files: dict[bytes, ChakraFile] = data_field(default_factory=dict)
    _num_nodes: int = 0
    _names: dict[str, str] = data_field(default_factory=dict)  # attribute -> the one that was meant, '' if it is right
    _misspelt: list[str] = data_field(default_factory=list)

    def read(self, path: Path | str) -> ChakraFile:
        """The trace in a file. UserError: cannot be read, or is malformed."""
        path = Path(path)
        data = file_bytes(path)
        known = self._files.get(data)
        if known is None:
            try:
                known = self._parse(path, data)
            except Malformed as error:
                raise UserError(f"{path}: byte {error.offset}: not a Chakra trace: {error.reason}") from None
            self._files[data] = known
            return known
        return ChakraFile(
            path=path, content=known.content, version=known.version, metadata=known.metadata, nodes=known.nodes
        )

    def _parse(self, path: Path, data: bytes) -> ChakraFile:
        if not data:
            raise Malformed(0, "the file is empty")
        start, end = _frame(data, 0)
        version, metadata = self._metadata(data, start, end)
        known, nodes, at, total = self._nodes, [], end, len(data)
        while at < total:
            size = data[at]
            if size < 0x80:
                start = at + 1
                end = start + size
                if end > total:
                    _frame(data, at)
            else:
                start, end = _frame(data, at)
            body = data[start:end]
            node = known.get(body)
            if node is None:
                if len(known) >= _NODES_KEPT:
                    known.clear()
                node = known[body] = self._node(path, body, start, len(nodes))
            nodes.append(node)
            at = end
        return ChakraFile(path=path, content=len(self._files), version=version, metadata=metadata, nodes=tuple(nodes))

    def _metadata(self, data: bytes, at: int, end: int) -> tuple[str, dict[str, Value]]:
        version, attributes = "", {}
        while at < end:
            start = at
            number, wire, content, at = field(data, at, end)
            if number in (1, 2) and wire != BYTES:
                raise Malformed(start, "the first message is not GlobalMetadata")
            if number == 1:
                version = text(data, content, at)
            elif number == 2:
                name, attributes[name] = attribute(data, content, at)
        return version, attributes

    def _node(self, path: Path, body: bytes, offset: int, index: int) -> ChakraNode:
        """The node in `body`, which stands at `offset` of the file."""
        try:
            node = self._node_fields(body)
            if self._misspelt:
                self._refuse_misspelt(path, node)
            return node
        except Malformed as error:
            raise Malformed(offset + error.offset, f"node {index} of the file: {error.reason}") from None

    def _node_fields(self, body: bytes) -> ChakraNode:
        at, end, known = 0, len(body), self._attributes
        numbers = [0] * 8
        name, attributes, deps, tensors = "", {}, {4: [], 5: []}, {8: None, 9: None}
        while at < end:
            start = at
            if body[at] == 0x52 and at + 1 < end and body[at + 1] < 0x80:  # attr, below 128 bytes
                content = at + 2
                at = content + body[start + 1]
                pair = known.get(body[content:at])
                if pair is None or at > end:
                    field(body, start, end)
                    pair = self._attribute(body, content, at)
                attributes[pair[0]] = pair[1]
                continue
            number, wire, content, at = field(body, at, end)
            if number in (1, 3, 6, 7):
                _check(wire, VARINT, start, number)
                numbers[number] = content
            elif number in (4, 5):
                if wire == VARINT:
                    deps[number].append(content)
                else:
                    _check(wire, BYTES, start, number)
                    deps[number] += unsigned_list(body, content, at)
            elif number in (2, 8, 9, 10):
                _check(wire, BYTES, start, number)
                if number == 2:
                    name = text(body, content, at)
                elif number == 10:
                    pair = self._attribute(body, content, at)
                    attributes[pair[0]] = pair[1]
                else:
                    tensors[number] = _tensors(body, content, at)
        self._num_nodes += 1
        return ChakraNode(
            self._num_nodes - 1, numbers[1], numbers[3] & 0xFFFFFFFF, name, tuple(deps[5]), tuple(deps[4]), numbers[6],
            numbers[7], attributes, tensors[8], tensors[9],
        )  # fmt: skip

    def _attribute(self, body: bytes, at: int, end: int) -> tuple[str, Value]:
        if len(self._attributes) >= _ATTRIBUTES_KEPT:
            self._attributes.clear()
        pair = self._attributes[body[at:end]] = attribute(body, at, end)
        name = pair[0]
        known = self._names.get(name)
        if known is None:
            if len(self._names) >= _NAMES_KEPT:
                self._names.clear()
            known = self._names[name] = meant(name)
        if known:
            self._misspelt.append(name)
        return pair

    def _refuse_misspelt(self, path: Path, node: ChakraNode) -> None:
        name = self._misspelt[0]
        named = _FILE_NAME.fullmatch(path.name)
        rank = f"rank {int(named[2])}, " if named else ""
        raise UserError(
            f"{path}: {rank}node {node.id}: attribute {name!r} is read by nobody; is {self._names[name]!r} meant?"
        )


def _check(wire: int, wanted: int, start: int, number: int) -> None:
    if wire != wanted:
        raise Malformed(start, f"field {number} of a node with wire type {wire} instead of {wanted}")


def _frame(data: bytes, at: int) -> tuple[int, int]:
    """(start, end) of the message whose length stands at `at`."""
    size, start = varint(data, at, len(data))
    if size >> 32 or start - at > 5:
        raise Malformed(at, f"a message of {size} bytes")
    if size > len(data) - start:
        raise Malformed(at, f"a message of {size} bytes, but the file ends after {len(data) - start}")
    return start, start + size


def _tensors(body: bytes, at: int, end: int) -> _Tensors:
    parts = ["", "", ""]
    while at < end:
        start = at
        number, wire, content, at = field(body, at, end)
        if 1 <= number <= 3:
            if wire != BYTES:
                raise Malformed(start, f"field {number} of IOInfo with wire type {wire} instead of {BYTES}")
            parts[number - 1] = text(body, content, at)
    return parts[0], parts[1], parts[2]


def file_bytes(path: Path) -> bytes:
    """The file's bytes, unzipped."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    return data if data[:2] != b"\x1f\x8b" else _unzipped(path, data)


def _unzipped(path: Path, data: bytes) -> bytes:
    limit = max(_EXPANDED_BYTES, _EXPANSION * len(data))
    parts, total = [], 0
    try:
        while data:
            unzip = zlib.decompressobj(wbits=31)
            parts.append(unzip.decompress(data, limit - total))
            total += len(parts[-1])
            if not unzip.eof:
                reason = f"grows beyond {limit} bytes" if total >= limit else "is cut off"
                raise UserError(f"{path}: byte {len(data)}: the gzipped trace {reason}")
            data = unzip.unused_data
    except zlib.error as error:
        raise UserError(f"{path}: not a gzipped trace: {error}") from None
    return b"".join(parts)


def find_chakra(where: Path | str) -> dict[int, Path]:
    """rank -> file, in order of ranks, of a PREFIX, of a folder with the files of one prefix, or of the folder of a
    run.

    UserError: no such files, files of several prefixes, a rank twice (x.0.et and x.0.et.gz).
    """
    where = Path(where)
    if (where / "chakra").is_dir():
        where = where / "chakra"
    is_folder = where.is_dir()
    folder = where if is_folder else where.parent
    try:
        matches = [match for match in map(_FILE_NAME.fullmatch, sorted(os.listdir(folder))) if match]
    except OSError as error:
        raise UserError(f"no traces {where}.RANK.et: {error.strerror}") from None
    prefixes = sorted({match[1] for match in matches})
    known = f" (prefixes there: {', '.join(prefixes[:10])})" if prefixes else ""
    if is_folder and len(prefixes) > 1:
        raise UserError(f"{where}: traces of several prefixes; name one of them{known}")
    prefix = prefixes[0] if is_folder and prefixes else where.name
    found: dict[int, Path] = {}
    for match in matches:
        if match[1] == prefix:
            rank, path = int(match[2]), folder / match[0]
            if rank in found:
                raise UserError(f"two traces of rank {rank}: {found[rank]} and {path}")
            found[rank] = path
    if not found:
        raise UserError(f"no traces {where / '*' if is_folder else where}.RANK.et{known}")
    return dict(sorted(found.items()))


def read_chakra(where: Path | str) -> list[ChakraFile]:
    """The traces of ranks 0, 1, ... UserError: none there, one is missing, one is malformed."""
    found = find_chakra(where)
    return read_files([found[rank] for rank in check_ranks(where, found, max(found) + 1)])


def check_ranks(where: Path | str, found: dict[int, Path], world_size: int) -> range:
    """range(world_size). UserError if a rank has no file."""
    missing = [rank for rank in range(world_size) if rank not in found]
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise UserError(f"{where}: no trace of rank {shown} ({world_size} ranks needed, {len(found)} files there)")
    return range(world_size)


def read_files(paths: Iterable[Path | str]) -> list[ChakraFile]:
    """The traces in these files, with what is equal shared."""
    reader = ChakraReader()
    return [reader.read(path) for path in paths]
