"""Protobuf messages as rows of a byte matrix: one layout, millions of messages, no Python per message.

A varint may be longer than it need be (10 is `0a`, but also `8a 00`), so every varying number of a layout can have a
fixed width; then all messages of the layout have the same length and a NumPy assignment writes one byte of all of them.
Source of the encoding: protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Union

import numpy as np

VARINT, FIXED64, LENGTH = 0, 1, 2
BLOCK_ROWS = 1 << 15  # as many at a time are made, written and forgotten


_ONE_BYTE = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """`value` (>= 0) in as few bytes as possible."""
    if value < 128:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def padded_varint(value: int, width: int) -> bytes:
    """`value` (>= 0) in exactly `width` bytes."""
    assert value < 1 << 7 * width
    return bytes((value >> 7 * i & 127) | (128 if i < width - 1 else 0) for i in range(width))


def varint_width(largest: int) -> int:
    """How many bytes a varint needs for every value in 0..largest."""
    return max(1, -(-int(largest).bit_length() // 7))


def tag(number: int, wire_type: int) -> bytes:
    """The key before a field's value."""
    return varint(number << 3 | wire_type)


def field_varint(number: int, value: int) -> bytes:
    """A field holding one integer."""
    return tag(number, VARINT) + varint(value)


def field_bytes(number: int, value: bytes) -> bytes:
    """A field holding a string, bytes or a message."""
    return tag(number, LENGTH) + varint(len(value)) + value


@dataclass(frozen=True, slots=True)
class Column:
    """A field whose integer differs from row to row, `width` bytes of varint."""

    number: int
    name: str
    width: int


@dataclass(frozen=True, slots=True)
class DoubleColumn:
    """A field whose double differs from row to row."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class FixedColumn:
    """A fixed64 field whose integer differs from row to row."""

    number: int
    name: str


@dataclass(frozen=True, slots=True)
class Message:
    """A nested message of fixed layout.

    name: set it (on the message and on those around it) to be able to append fields in single rows (see Rows.pieces).
    length_width: bytes of the length prefix; 1 is enough below 128 bytes.
    """

    number: int
    parts: tuple["Part", ...]
    name: str = ""
    length_width: int = 2


Part = Union[bytes, Column, DoubleColumn, FixedColumn, Message]


@dataclass(slots=True)
class Layout:
    """The bytes that all rows share, and where the bytes lie that they do not."""

    template: np.ndarray
    columns: dict[str, tuple[int, int]]
    doubles: dict[str, int]
    messages: dict[str, tuple[list[int], int]]

    @classmethod
    def of(cls, *parts: Part) -> "Layout":
        """Lay `parts` out one after the other."""
        builder = _Builder()
        builder.add_all(parts)
        template = np.frombuffer(bytes(builder.data), np.uint8)
        return cls(template, builder.columns, builder.doubles, builder.messages)

    def rows(self, count: int) -> "Rows":
        """`count` rows whose columns are still zero."""
        return Rows(self, np.tile(self.template, (count, 1)))


@dataclass(slots=True)
class _Builder:
    data: bytearray = field(default_factory=bytearray)
    columns: dict[str, tuple[int, int]] = field(default_factory=dict)
    doubles: dict[str, int] = field(default_factory=dict)
    messages: dict[str, tuple[list[int], int]] = field(default_factory=dict)
    open_lengths: list[int] = field(default_factory=list)

    def add_all(self, parts: tuple[Part, ...]) -> None:
        for part in parts:
            if isinstance(part, bytes):
                self.data += part
            elif isinstance(part, Message):
                self.add_message(part)
            elif isinstance(part, Column):
                self.data += tag(part.number, VARINT)
                self.columns[part.name] = (len(self.data), part.width)
                self.data += padded_varint(0, part.width)
            else:
                self.data += tag(part.number, FIXED64)
                self.doubles[part.name] = len(self.data)
                self.data += bytes(8)

    def add_message(self, message: Message) -> None:
        self.data += tag(message.number, LENGTH)
        length_at, width = len(self.data), message.length_width
        self.open_lengths.append(length_at)
        self.data += bytes(width)
        self.add_all(message.parts)
        length = len(self.data) - length_at - width
        self.data[length_at : length_at + width] = padded_varint(length, width)
        if message.name:
            self.messages[message.name] = (list(self.open_lengths), len(self.data))
        self.open_lengths.pop()


@dataclass(slots=True)
class Rows:
    """Messages of one layout: matrix[i] holds the bytes of row i."""

    layout: Layout
    matrix: np.ndarray

    def take(self, index: np.ndarray) -> "Rows":
        """A copy that holds row index[i] as its row i."""
        return Rows(self.layout, self.matrix.take(index, axis=0))

    def put(self, column: str, values: np.ndarray | int) -> None:
        """Write integers (>= 0, below 2 ** (7 * width)) into a column."""
        at, width = self.layout.columns[column]
        _put_varint(self.matrix, at, width, np.asarray(values, np.int64))

    def put_fixed(self, column: str, values: np.ndarray) -> None:
        """Write integers into a fixed64 column."""
        at = self.layout.doubles[column]
        self.matrix[:, at : at + 8] = np.asarray(values, "<i8").reshape(-1, 1).view(np.uint8)

    def put_double(self, column: str, values: np.ndarray) -> None:
        """Write doubles into a column."""
        at = self.layout.doubles[column]
        self.matrix[:, at : at + 8] = np.asarray(values, "<f8").reshape(-1, 1).view(np.uint8)

    def pieces(self, message: str, fields: dict[int, bytes], after: dict[int, bytes]) -> Iterator[memoryview | bytes]:
        """The bytes of all rows, in pieces.

        In row i, fields[i] (whole fields) are appended to `message`, and after[i] (whole messages) follow it. For
        fields, the length prefixes of `message` and of those around it must be two bytes wide.
        """
        length_places, insert_at = self.layout.messages[message]
        flat, width, written = memoryview(self.matrix).cast("B"), self.matrix.shape[1], 0
        for row in sorted(fields.keys() | after.keys()):
            extra = fields.get(row, b"")
            for at in length_places if extra else ():
                old = int(self.matrix[row, at] & 127) | int(self.matrix[row, at + 1]) << 7
                self.matrix[row, at : at + 2] = list(padded_varint(old + len(extra), 2))
            cut = row * width + insert_at
            yield flat[written:cut]
            yield extra + after.get(row, b"")
            written = cut
        yield flat[written:]


def _put_varint(matrix: np.ndarray, at: int, width: int, values: np.ndarray) -> None:
    assert values.size == 0 or (values.min() >= 0 and int(values.max()) < 1 << 7 * width)
    for i in range(width):
        byte = values >> 7 * i & 127
        matrix[:, at + i] = byte | 128 if i < width - 1 else byte
