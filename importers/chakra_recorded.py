"""Chakra traces that Phantora itself recorded: the tables in GlobalMetadata give back the run with nothing lost.

They count only while the file is as it was written (CRC-32 of all its bytes): after an edit the nodes speak.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phantora.cluster.plain import from_plain
from phantora.errors import UserError
from phantora.importers.chakra_file import file_bytes
from phantora.importers.chakra_wire import BYTES, Malformed, attribute, field, text, varint
from phantora.trace.model import RankTrace, Run
from phantora.trace.tables import run_from, trace_from

_CRC_ATTRIBUTE = b"\x0a\x05crc32\x9d\x01"  # name, and the tag of fixed32_val; the value's 4 bytes end the message
_SINT64_LIST = 18  # field of AttributeProto
_DAMAGE = (Malformed, ValueError, KeyError, IndexError, TypeError, OverflowError, AttributeError, RecursionError)


def read_recorded(paths: Sequence[Path]) -> Run | None:
    """The run, when all of `paths` (rank 0, 1, ...) are untouched recordings; None when one is not."""
    metadata = []
    for path in paths:
        data = file_bytes(path)
        bounds = _bounds(data)
        if bounds is None:
            return None
        try:
            metadata.append(_tables(data, *bounds))
        except _DAMAGE as error:
            raise UserError(f"{path}: the tables of the recorded run cannot be read: {error}") from None
    try:
        ranks = [trace_from(columns, plain["host"]) for columns, plain in metadata]
        _check_ranks(paths, ranks, [plain["world_size"] for _, plain in metadata])
        columns, plain = metadata[0]
        cluster = plain["run"]["cluster"]
        known = from_plain(cluster, f"{paths[0]}: cluster") if isinstance(cluster, dict) else cluster
        run = run_from(columns, plain["run"], known, ranks)
    except _DAMAGE as error:
        raise UserError(f"{paths[0]}: the tables of the recorded run do not fit together: {error}") from None
    return run


def _check_ranks(paths: Sequence[Path], ranks: Sequence[RankTrace], world_sizes: Sequence[int]) -> None:
    for number, (path, trace, world_size) in enumerate(zip(paths, ranks, world_sizes)):
        if trace.rank != number:
            raise UserError(f"{path}: holds rank {trace.rank}, not rank {number}")
        if len(ranks) != world_size:
            raise UserError(f"{path}: the run has {world_size} ranks, but there are {len(ranks)} files")


def _bounds(data: bytes) -> tuple[int, int] | None:
    """Where GlobalMetadata begins and ends in a file, or None when it is no untouched recording."""
    try:
        size, start = varint(data, 0, len(data))
        end = start + size
        crc_at = end - 4
        if size > len(data) - start or not data[:crc_at].endswith(_CRC_ATTRIBUTE):
            return None
        crc = zlib.crc32(data[end:], zlib.crc32(data[:crc_at]))
        return (start, end) if crc == int.from_bytes(data[crc_at:end], "little") else None
    except Malformed:
        return None


def _tables(data: bytes, at: int, end: int) -> tuple[Mapping[str, np.ndarray], Mapping[str, Any]]:
    """(columns, plain values)."""
    columns: dict[str, np.ndarray] = {}
    plain: dict[str, Any] = {}
    while at < end:
        number, wire, content, at = field(data, at, end)
        if number != 2 or wire != BYTES:
            continue
        name, values = _column(data, content, at)
        if values is not None:
            columns[name] = values
        else:
            name, value = attribute(data, content, at)
            plain[name] = json.loads(value) if name in ("host", "run") and isinstance(value, str) else value
    return columns, plain


def _column(data: bytes, at: int, end: int) -> tuple[str, np.ndarray | None]:
    """(name, values) of an attribute with a sint64_list; values None for any other."""
    name, values = "", None
    while at < end:
        number, wire, content, at = field(data, at, end)
        if number == 1 and wire == BYTES:
            name = text(data, content, at)
        elif number == _SINT64_LIST and wire == BYTES:
            values = np.empty(0, np.int64)
            while content < at:
                inner, inner_wire, begin, content = field(data, content, at)
                if inner == 1 and inner_wire == BYTES:
                    values = np.cumsum(unpacked_sint64(data[begin:content]))
    return name, values


def unpacked_sint64(packed: bytes) -> np.ndarray:
    """Packed zigzag varints as int64."""
    raw = np.frombuffer(packed, np.uint8)
    if not len(raw):
        return np.empty(0, np.int64)
    ends = np.flatnonzero(raw < 0x80)
    if not len(ends) or ends[-1] != len(raw) - 1:
        raise Malformed(0, "a number is cut off")
    begins = np.concatenate(([0], ends[:-1] + 1))
    places = np.arange(len(raw)) - np.repeat(begins, ends - begins + 1)
    if int(places.max()) > 9:
        raise Malformed(0, "a number of more than 10 bytes")
    parts = (raw & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    values = np.add.reduceat(parts, begins)
    return ((values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))).view(np.int64)
