"""Protobuf's wire format, as far as Chakra traces use it: varints, fields, and the values of an attribute.

Offsets count from the start of the bytes given. Everything that is malformed raises `Malformed` with an offset and a
reason. Source of the encoding: protobuf.dev/programming-guides/encoding; of the field numbers: mlcommons/chakra,
et_def.proto 0.0.4.
"""

from __future__ import annotations

import struct
from typing import Any, Callable

Value = Any
"""of an attribute: int, bool, float, str, bytes, a tuple of one of these, or None where the attribute has no value"""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MASK64 = (1 << 64) - 1


class Malformed(Exception):
    """Bytes that are no Chakra message: `offset` and `reason`."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(offset, reason)
        self.offset, self.reason = offset, reason


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """(value, offset behind it) of the varint at `at`, of at most 64 bits."""
    value, shift, start = 0, 0, at
    while True:
        if at >= end:
            raise Malformed(start, "a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
        if shift > 63:
            raise Malformed(start, "a number of more than 10 bytes")


def field(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """(number, wire type, varint's value or offset of the content, offset behind the field) of the field at `at`."""
    start = at
    tag, at = varint(data, at, end)
    number, wire = tag >> 3, tag & 7
    if not 0 < number < 1 << 29:
        raise Malformed(start, f"field number {number}")
    if wire == VARINT:
        value, at = varint(data, at, end)
        return number, wire, value, at
    if wire == BYTES:
        size, at = varint(data, at, end)
    elif wire in (FIXED64, FIXED32):
        size = 8 if wire == FIXED64 else 4
    else:
        raise Malformed(start, f"field {number} has wire type {wire}, which Chakra does not use")
    if size > end - at:
        raise Malformed(start, f"field {number} of {size} bytes reaches {size - (end - at)} bytes beyond its message")
    return number, wire, at, at + size


def text(data: bytes, at: int, end: int) -> str:
    """The UTF-8 string between two offsets."""
    try:
        return data[at:end].decode()
    except UnicodeDecodeError as error:
        raise Malformed(at + error.start, "text that is not UTF-8") from None


def unsigned_list(data: bytes, at: int, end: int) -> list[int]:
    """Packed varints between two offsets."""
    values = []
    while at < end:
        value = data[at]
        if value < 0x80:
            at += 1
        else:
            value, at = varint(data, at, end)
        values.append(value)
    return values


def _int32(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _zigzag(value: int) -> int:
    return (value >> 1) ^ -(value & 1)


_VARINTS: dict[str, Callable[[int], Value]] = {
    "int32": _int32, "int64": _int64, "uint32": lambda value: value & 0xFFFFFFFF, "uint64": int,
    "sint32": lambda value: _zigzag(value & 0xFFFFFFFF), "sint64": _zigzag, "bool": bool,
}  # fmt: skip
_FIXED = {
    "double": "<d", "float": "<f", "fixed32": "<I", "fixed64": "<Q", "sfixed32": "<i", "sfixed64": "<q",
}  # fmt: skip
# AttributeProto: name 1, doc_string 2, then <case>_val and <case>_list from 3 on, in this order
_CASES = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
)  # fmt: skip


def attribute(data: bytes, at: int, end: int) -> tuple[str, Value]:
    """(name, value) of the AttributeProto between two offsets."""
    name, value = "", None
    while at < end:
        start = at
        number, wire, content, at = field(data, at, end)
        if number == 1:
            _expect(wire, BYTES, start, "an attribute's name")
            name = text(data, content, at)
        elif 3 <= number < 3 + 2 * len(_CASES):
            case = _CASES[(number - 3) // 2]
            if number % 2:
                value = _scalar(data, case, wire, content, at, start)
            else:
                _expect(wire, BYTES, start, f"a {case} list")
                value = _list(data, case, content, at)
    return name, value


def _expect(wire: int, wanted: int, start: int, what: str) -> None:
    if wire != wanted:
        raise Malformed(start, f"{what} with wire type {wire} instead of {wanted}")


def _scalar(data: bytes, case: str, wire: int, content: int, end: int, start: int) -> Value:
    """`content` is the value itself for varints, else the offset where it begins."""
    if case in _VARINTS:
        _expect(wire, VARINT, start, f"a {case} value")
        return _VARINTS[case](content)
    if case in _FIXED:
        _expect(wire, FIXED64 if struct.calcsize(_FIXED[case]) == 8 else FIXED32, start, f"a {case} value")
        return struct.unpack_from(_FIXED[case], data, content)[0]
    _expect(wire, BYTES, start, f"a {case} value")
    return text(data, content, end) if case == "string" else data[content:end]


def _list(data: bytes, case: str, at: int, end: int) -> tuple[Value, ...]:
    """The repeated field 1 of a list message, packed or not."""
    values: list[Value] = []
    while at < end:
        start = at
        number, wire, content, at = field(data, at, end)
        if number != 1:
            continue
        if wire == BYTES and case not in ("string", "bytes"):
            values += _packed(data, case, content, at)
        else:
            values.append(_scalar(data, case, wire, content, at, start))
    return tuple(values)


def _packed(data: bytes, case: str, at: int, end: int) -> list[Value]:
    if case in _VARINTS:
        return [_VARINTS[case](value) for value in unsigned_list(data, at, end)]
    size = struct.calcsize(_FIXED[case])
    if (end - at) % size:
        raise Malformed(at, f"a {case} list of {end - at} bytes")
    return [value for (value,) in struct.iter_unpack(_FIXED[case], data[at:end])]
