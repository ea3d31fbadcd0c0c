"""Whether a file is a trace that Perfetto's user interface opens: its first packet tells, or Chrome's key of events.

Source: Perfetto, protos/perfetto/trace/trace.proto (packets are field 1 of Trace); protobuf's wire format.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

_PACKET_TAG = 0x0A  # field 1, with a length
_WIRE_TYPES = (0, 1, 2, 5)
_HEAD_BYTES = 64
_JSON_BYTES = 1 << 16  # what may stand before the events of a JSON trace: properties of devices
_EVENTS = (b'"traceEvents"', b'"ph"')
_GZIP = b"\x1f\x8b"


def is_perfetto(path: Path) -> bool:
    """Whether the first packet begins with a field of its own, or it is Chrome's JSON; compressed by gzip or not. OSError."""
    with path.open("rb") as file:
        head = file.read(_JSON_BYTES)
    if not head.startswith(_GZIP):
        return _is_json(head) or _begins_packet(head[:_HEAD_BYTES], path.stat().st_size)
    try:
        with gzip.open(path, "rb") as file:
            head = file.read(_JSON_BYTES)
            return _is_json(head) or _begins_packet(head[:_HEAD_BYTES], None)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return False


def _is_json(head: bytes) -> bool:
    """The JSON of chrome://tracing: an object with traceEvents, or a list of events (Trace Event Format, 'JSON formats')."""
    return head.lstrip()[:1] in (b"{", b"[") and any(key in head for key in _EVENTS)


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
