"""The file of a Perfetto trace: packets one after the other, and descriptors of the rows that the user interface shows.

Source of the fields: perfetto protos/perfetto/trace/track_event/track_descriptor.proto (release 59.1).
"""

from __future__ import annotations

from typing import BinaryIO

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor
from phantora.exporters.protobuf_rows import Rows

_FIRST_PROCESS = 1_000  # id of rank 0; the user interface writes ids behind names, where "rank 3 4" would mislead
_THREAD_STRIDE = 1_000_000  # the id of the main thread is that of the process, those of others are far beyond


class TraceFile:
    """Writes packets and numbers tracks from 1."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.num_tracks = 0

    def packet(self, packet: TracePacket) -> None:
        """One packet."""
        self.file.write(Trace(packet=[packet]).SerializeToString(deterministic=True))

    def rows(self, rows: Rows) -> None:
        """Rows of packets."""
        if len(rows.matrix):
            self.file.write(memoryview(rows.matrix).cast("B"))

    def root(self) -> None:
        """Processes and threads in the order that we give them (an older user interface, such as 52, sorts by number of
        slices)."""
        root = TrackDescriptor(uuid=0)
        root.process_ordering = TrackDescriptor.PROCESS_ORDERING_EXPLICIT
        root.thread_ordering = TrackDescriptor.THREAD_ORDERING_EXPLICIT
        self._descriptor(root)

    def process(self, rank: int, name: str) -> int:
        """The process of a rank."""
        track = self._new()
        track.sibling_order_rank = rank
        track.child_ordering = TrackDescriptor.EXPLICIT
        track.process.pid, track.process.process_name = _FIRST_PROCESS + rank, name
        return self._descriptor(track)

    def thread(self, rank: int, number: int, name: str, order: int) -> int:
        """Thread `number` (0: the main one) of the process of a rank."""
        track = self._new()
        track.sibling_order_rank = order
        track.thread.pid, track.thread.tid = _FIRST_PROCESS + rank, _FIRST_PROCESS + rank + number * _THREAD_STRIDE
        track.thread.thread_name = name
        return self._descriptor(track)

    def track(self, parent: int, name: str, order: int) -> int:
        """A row of slices below `parent`."""
        return self._descriptor(self._child(parent, name, order))

    def counter(self, parent: int, name: str, order: int, *, unit: str, axis: str) -> int:
        """A row with a graph; unit: 'bytes' or a text. Those with one axis text have one scale."""
        track = self._child(parent, name, order)
        if unit == "bytes":
            track.counter.unit = track.counter.UNIT_SIZE_BYTES
        else:
            track.counter.unit_name = unit
        track.counter.y_axis_share_key = axis
        return self._descriptor(track)

    def _new(self) -> TrackDescriptor:
        self.num_tracks += 1
        return TrackDescriptor(uuid=self.num_tracks)

    def _child(self, parent: int, name: str, order: int) -> TrackDescriptor:
        track = self._new()
        track.parent_uuid, track.name, track.sibling_order_rank = parent, name, order
        return track

    def _descriptor(self, track: TrackDescriptor) -> int:
        self.packet(TracePacket(trusted_packet_sequence_id=1, track_descriptor=track))
        return track.uuid
