"""What a rank process and the engine say to each other over a Unix socket.

Frame: u32 little-endian length of (type + payload), u8 type, payload.
RECORDS carries fixed-size records (RECORD) straight from the native device; every other payload is msgpack.
A definition travels before the first record that uses it. msgpack and struct only: never pickle.
"""

from __future__ import annotations

import enum
import struct

HEADER = struct.Struct("<IB")

# kind, device, thread, host_ns, a, b, c  -- native/record.h holds the same layout
RECORD = struct.Struct("<ihhqqqq")


class Frame(enum.IntEnum):
    """Types of frames. Rank to engine unless said."""

    HELLO = 1  # {rank, pid, world_size, local_size}: first frame of a connection
    RECORDS = 2  # RECORD * n
    SIGNATURE = 3  # {id, name, overload, inputs, outputs, duration_ns, num_kernels, source, flops, bytes, family, draw, call (JSON)}
    COLLECTIVE = 5  # {id, parts: [...], stack}
    STACK = 6  # {id, text}
    STRING = 7  # {id, text}
    CALL = 8  # {id, method, args..., clock_ns, thread, stack}: wants a REPLY with the same id
    NOTE = 9  # {method, clock_ns, thread, ...}: no reply
    REPLY = 10  # engine to rank: {id, ...}
    ABORT = 11  # engine to rank: {reason}: the run is over


class Kind(enum.IntEnum):
    """Kinds of records, and what a, b, c mean."""

    OP = 0  # a: signature, b: stream
    ALLOC = 1  # a: address, b: bytes allocated now in all (after), c: bytes reserved now in all
    FREE = 2  # a: address, b: bytes allocated now in all (after), c: bytes reserved now in all
    EVENT_RECORD = 3  # a: event, b: stream
    EVENT_WAIT = 4  # a: event, b: stream
    EVENT_DESTROY = 5  # a: event
    RECORD_STREAM = 6  # a: address, b: stream
    HOST_WAIT = 7  # a: begin_ns (host_ns is the end), b: what (0 stream, 1 event, 2 device), c: stream or event
    COLLECTIVE = 16  # a: collective call, b: stream
    MARK = 17  # a: string, b: +1 push, -1 pop, 0 instant


UNIT_KINDS = {
    "view": 40, "gradient": 41, "module": 42, "parameter": 43, "subclass": 44, "cpu_random": 45, "placement": 46,
}  # fmt: skip
"""Unit of host time (cluster.spec.UNITS) -> its number beside the kinds of records, in native/record.h; never a record."""
