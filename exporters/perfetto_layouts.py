"""The packets of a Perfetto trace as layouts of rows (see protobuf_rows).

Field numbers: perfetto protos/perfetto/trace/trace_packet.proto, track_event/track_event.proto,
track_event/debug_annotation.proto (release 59.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.exporters.perfetto_tables import Texts
from phantora.exporters.protobuf_rows import (
    FIXED64, Column, DoubleColumn, FixedColumn, Layout, Message, Part, field_varint, tag,
)  # fmt: skip

SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4  # TrackEvent.Type
SEQUENCE = field_varint(10, 1)  # TracePacket.trusted_packet_sequence_id: without it track events vanish
_USES_INTERNED = field_varint(13, 2)  # sequence_flags = SEQ_NEEDS_INCREMENTAL_STATE
_TRACK_WIDTH, _COUNTER_WIDTH = 3, 7


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of the varints that depend on the run: times, and numbers of texts."""

    time: int
    name: int
    string: int


def flow_source(flow: int) -> bytes:
    """TrackEvent.flow_ids: an arrow that starts, or passes on, in this slice."""
    return tag(47, FIXED64) + flow.to_bytes(8, "little")


def flow_sink(flow: int) -> bytes:
    """TrackEvent.terminating_flow_ids: an arrow that ends in this slice."""
    return tag(48, FIXED64) + flow.to_bytes(8, "little")


def kernel_layout(widths: Widths, arguments: Texts, with_launch: bool) -> Layout:
    """BEGIN and END of a kernel. with_launch: it has a column launch_flow, the arrow from its launch."""
    text = widths.string
    return _slice_layout(
        widths, with_launch,
        _text(arguments, "op", text), _text(arguments, "shapes", text), _integer(arguments, "bytes", 7),
        _integer(arguments, "flops", 9), _text(arguments, "rate", text), _integer(arguments, "num_kernels", 3),
        _text(arguments, "price_source", text), _integer(arguments, "queued_ns", widths.time),
    )  # fmt: skip


def communication_layout(widths: Widths, arguments: Texts, with_launch: bool) -> Layout:
    """BEGIN and END of one communication kernel (one collective, or a coalesced group of them); see kernel_layout."""
    text = widths.string
    busbw = (field_varint(1, arguments.number("busbw_gb_per_s")), DoubleColumn(5, "busbw"))
    return _slice_layout(
        widths, with_launch,
        _text(arguments, "kind", text), _integer(arguments, "bytes", 8), _text(arguments, "dtype", text),
        _text(arguments, "group", text), _integer(arguments, "group_size", 3), _text(arguments, "algorithm", text),
        Message(4, busbw, length_width=1), _integer(arguments, "wait_ns", widths.time),
        _integer(arguments, "queued_ns", widths.time), _integer(arguments, "num_coalesced", 3),
        _text(arguments, "stack", text),
    )  # fmt: skip


def launch_layout(widths: Widths) -> Layout:
    """BEGIN and END of a launch, from which an arrow leads to what it launched."""
    event = (Column(3, "category", 2), field_varint(9, SLICE_BEGIN), Column(10, "name", widths.name), _track())
    return _begin_and_end(widths, (*event, FixedColumn(47, "flow")))


def event_layout(widths: Widths) -> Layout:
    """One event without arguments: a BEGIN, an END or an INSTANT."""
    event = Message(11, (Column(3, "category", 2), Column(9, "type", 1), Column(10, "name", widths.name), _track()))
    return Layout.of(Message(1, (Column(8, "time", widths.time), SEQUENCE, _USES_INTERNED, event)))


def counter_layout(widths: Widths) -> Layout:
    """One sample of a counter (up to 2 ** 49)."""
    event = Message(11, (field_varint(9, COUNTER), _track(), Column(30, "value", _COUNTER_WIDTH)))
    return Layout.of(Message(1, (Column(8, "time", widths.time), SEQUENCE, event)))


def rate_layout(widths: Widths) -> Layout:
    """One sample of a counter that is no integer."""
    event = Message(11, (field_varint(9, COUNTER), _track(), DoubleColumn(44, "value")))
    return Layout.of(Message(1, (Column(8, "time", widths.time), SEQUENCE, event)))


def _track(name: str = "track") -> Column:
    return Column(11, name, _TRACK_WIDTH)


def _slice_layout(widths: Widths, with_launch: bool, *arguments: Part) -> Layout:
    event = (
        Column(3, "category", 2),
        *arguments,
        field_varint(9, SLICE_BEGIN),
        Column(10, "name", widths.name),
        _track(),
        *((FixedColumn(48, "launch_flow"),) if with_launch else ()),
    )
    return _begin_and_end(widths, event)


def _begin_and_end(widths: Widths, event: tuple[Part, ...]) -> Layout:
    begin = (Column(8, "begin", widths.time), SEQUENCE, _USES_INTERNED, Message(11, event, "event"))
    end_event = Message(11, (field_varint(9, SLICE_END), _track("end_track")), length_width=1)
    end = (Column(8, "end", widths.time), SEQUENCE, end_event)
    return Layout.of(Message(1, begin, "packet"), Message(1, end, "end", length_width=1))


def _integer(arguments: Texts, name: str, width: int) -> Message:
    return Message(4, (field_varint(1, arguments.number(name)), Column(3, name, width)), length_width=1)


def _text(arguments: Texts, name: str, width: int) -> Message:
    return Message(4, (field_varint(1, arguments.number(name)), Column(17, name, width)), length_width=1)
