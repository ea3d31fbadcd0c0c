"""Whether a file is a Perfetto trace: its first packet tells.

Source: Perfetto, protos/perfetto/trace/trace.proto (packets are field 1 of Trace); protobuf's wire format.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_PACKET_TAG = 0x0A  # field 1, with a length
_WIRE_TYPES = (0, 1, 2, 5)
_HEAD_BYTES = 64
_GZIP = b"\x1f\x8b"


def is_perfetto(path: Path) -> bool:
    """Whether the first packet begins with a field of its own; compressed by gzip or not. OSError."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head.startswith(_GZIP):
        return _begins_packet(head, path.stat().st_size)
    try:
        with gzip.open(path, "rb") as file:
            return _begins_packet(file.read(_HEAD_BYTES), None)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False


def _begins_packet(head: bytes, file_bytes: int | None) -> bool:
    if not head or head[0] != _PACKET_TAG:
        return False
    length = _varint(head, 1)
    if length is None or not length[0] or (file_bytes is not None and length[1] + length[0] > file_bytes):
        return False
    tag = _varint(head, length[1])
    return tag is not None and tag[0] >> 3 > 0 and tag[0] & 7 in _WIRE_TYPES


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    """(value, where the next one begins); None if it does not end within 10 bytes."""
    value = 0
    for i, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return value, at + i + 1
    return None
