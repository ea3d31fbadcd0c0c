"""A recorded run as a Perfetto trace (open it at ui.perfetto.dev).

One group of tracks per rank: one for the host, one per device stream, counters of memory; arrows join the members
of a collective and lead from work to work that waited for it through an event. The file is written rank by rank, track
by track, in blocks of rows: neither the trace nor a rank is ever whole in memory. Equal runs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackDescriptor
from phantora.exporters import perfetto_layouts as layouts
from phantora.exporters.lanes import disjoint_lanes, nesting_lanes
from phantora.exporters.perfetto_rank import (
    Columns,
    HostEvent,
    blocked_name,
    host_spans,
    last_ns,
    nested_events,
    stream_title,
    wait_name,
)
from phantora.exporters.perfetto_tables import CollectiveTable, Interned, KernelTable
from phantora.exporters.protobuf_rows import Rows, varint_width

from phantora.errors import UserError
from phantora.trace.columns import as_int64
from phantora.trace.model import RankTrace, Run

_BLOCK_ROWS = 1 << 15
_SHOWN_WAIT_NS = 1000  # a wait for the last member of a collective is drawn from this length on


def write_perfetto(run: Run, path: Path | str, ranks: Sequence[int] | None = None) -> Path:
    """Write the file `path` (by custom `trace.pftrace`) and return it. ranks: only these (default: all)."""
    known = {trace.rank: trace for trace in run.ranks}
    missing = [rank for rank in ranks or () if rank not in known]
    if missing:
        raise UserError(f"no rank {missing[0]} in this run (ranks: {', '.join(map(str, sorted(known)))})")
    chosen = [known[rank] for rank in sorted(known if ranks is None else set(ranks))]
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=1 << 20) as file:
        _TraceWriter(run, chosen, file).write()
    return path


class _TraceWriter:
    """Writes one file: texts first, then rank by rank its tracks and the rows on them."""

    def __init__(self, run: Run, ranks: list[RankTrace], file: BinaryIO) -> None:
        self.run, self.ranks, self.file = run, ranks, file
        self.texts = Interned()
        self.kernels = KernelTable.of(run.signatures, self.texts)
        self.collectives = CollectiveTable.of(run, ranks, self.texts)
        self._number_other_texts()
        widths = layouts.Widths(
            time=varint_width(last_ns(run, ranks)),
            name=varint_width(len(self.texts.names.numbers)),
            string=varint_width(len(self.texts.strings.numbers)),
        )
        self.kernel_rows = self._filled_kernel_rows(layouts.kernel_layout(widths, self.texts.argument_names))
        self.communication_layout = layouts.communication_layout(widths, self.texts.argument_names)
        self.event_layout = layouts.event_layout(widths)
        self.counter_layout = layouts.counter_layout(widths)
        self.num_tracks = 0
        self.next_flow = len(run.collectives) + 1

    def write(self) -> None:
        """Write the whole trace."""
        self._write_interned()
        for trace in self.ranks:
            parent = self._write_rank(trace)
            self._write_host(trace, parent)
            self._write_streams(trace, parent)
            self._write_memory(trace, parent)

    # texts

    def _number_other_texts(self) -> None:
        names, categories = self.texts.names, self.texts.categories
        for category in ("communication", "wait", "blocked", "range"):
            categories.number(category)
        for trace in self.ranks:
            for name in dict.fromkeys([*map(blocked_name, trace.wait_reason), *trace.mark_name]):
                names.number(name)
            names.number(wait_name(trace.rank))
            for parts in dict.fromkeys(trace.work_collectives):
                names.number(self._communication_name(trace.rank, parts))

    def _communication_name(self, rank: int, parts: tuple[int, ...]) -> str:
        infos = [self.run.collectives[i] for i in parts]
        if not infos:
            return "communication"
        if all(info.kind == "send_recv" for info in infos):
            words = [f"send to {c.ranks[1]}" if c.ranks[0] == rank else f"recv from {c.ranks[0]}" for c in infos]
            return ", ".join(words) if len(words) <= 2 else f"{words[0]}, ... ({len(words)})"
        return infos[0].kind if len(infos) == 1 else f"{infos[0].kind} x{len(infos)}"

    def _filled_kernel_rows(self, layout: layouts.Layout) -> Rows:
        rows = layout.rows(len(self.run.signatures))
        for name, values in self.kernels.columns.items():
            rows.put(name, values)
        return rows

    def _write_interned(self) -> None:
        packet = TracePacket(trusted_packet_sequence_id=1, sequence_flags=1, first_packet_on_sequence=True)
        for texts, table in (
            (self.texts.names, packet.interned_data.event_names),
            (self.texts.categories, packet.interned_data.event_categories),
            (self.texts.argument_names, packet.interned_data.debug_annotation_names),
        ):
            for text, number in texts.numbers.items():
                table.add(iid=number, name=text)
        for text, number in self.texts.strings.numbers.items():
            packet.interned_data.debug_annotation_string_values.add(iid=number, str=text.encode())
        self._write_packet(packet)

    # tracks

    def _write_packet(self, packet: TracePacket) -> None:
        self.file.write(Trace(packet=[packet]).SerializeToString(deterministic=True))

    def _write_track(self, parent: int, name: str, order: int, *, share_axis: str = "", group: bool = False) -> int:
        """share_axis: make it a counter of bytes whose scale is that of its siblings with the same text."""
        self.num_tracks += 1
        track = TrackDescriptor(uuid=self.num_tracks, name=name, sibling_order_rank=order)
        if parent:
            track.parent_uuid = parent
        if group:
            track.child_ordering = TrackDescriptor.EXPLICIT
            track.sibling_merge_behavior = TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        if share_axis:
            track.counter.unit = track.counter.UNIT_SIZE_BYTES
            track.counter.y_axis_share_key = share_axis
        self._write_packet(TracePacket(trusted_packet_sequence_id=1, track_descriptor=track))
        return self.num_tracks

    def _write_rank(self, trace: RankTrace) -> int:
        """The row that holds the rows of a rank, its number padded, as the user interface sorts these rows by name.

        Not a Perfetto process: those are sorted by number of slices and shown with a process id behind the name.
        """
        node, gpu = divmod(trace.rank, max(self.run.nproc_per_node, 1))
        digits = len(str(max(self.run.world_size - 1, 0)))
        return self._write_track(0, f"rank {trace.rank:0{digits}d} · node {node} GPU {gpu}", trace.rank, group=True)

    # host

    def _write_host(self, trace: RankTrace, parent: int) -> None:
        spans, instants = host_spans(trace)
        lanes = nesting_lanes(spans) or [[]]
        for number, lane in enumerate(lanes):
            track = self._write_track(parent, "host" if number == 0 else f"host (thread {number + 1})", number)
            self._write_events(nested_events(lane) + ([] if number else instants), track)

    def _write_events(self, events: list[HostEvent], track: int) -> None:
        if not events:
            return
        names, categories = self.texts.names.numbers, self.texts.categories.numbers
        numbers = np.array([(t, kind, names[name], categories[cat]) for t, kind, name, cat in events], np.int64)
        rows = self.event_layout.rows(len(events))
        for column, values in zip(("time", "type", "name", "category"), numbers.T):
            rows.put(column, values)
        rows.put("track", track)
        self.file.write(memoryview(rows.matrix).cast("B"))

    # device work

    def _write_streams(self, trace: RankTrace, parent: int) -> None:
        columns = Columns.of(trace)
        flows = self._flows(trace, columns)
        for order, (device, stream, communication, index) in enumerate(columns.tracks()):
            title = stream_title(trace, device if columns.several_devices else None, stream, communication)
            lanes = disjoint_lanes(columns.start_ns[index], columns.end_ns[index])
            for lane in range(int(lanes.max()) + 1):
                name = title if lane == 0 else f"{title} (overlap {lane})"
                track = self._write_track(parent, name, 100 + order)
                self._write_slices(trace, columns, index[lanes == lane], track, communication, flows)

    def _write_slices(
        self, trace: RankTrace, columns: Columns, index: np.ndarray, track: int, communication: bool,
        flows: dict[int, bytes],
    ) -> None:  # fmt: skip
        for at in range(0, len(index), _BLOCK_ROWS):
            block = index[at : at + _BLOCK_ROWS]
            if communication:
                rows, waits = self._communication_rows(trace, columns, block, track)
            else:
                rows, waits = self.kernel_rows.take(columns.signature[block]), {}
            rows.put("begin", columns.start_ns[block])
            rows.put("end", columns.end_ns[block])
            rows.put("queued_ns", np.maximum(columns.start_ns[block] - columns.issue_ns[block], 0))
            rows.put("track", track)
            rows.put("end_track", track)
            arrows = {i: flows[row] for i, row in enumerate(block.tolist()) if row in flows} if flows else {}
            self.file.writelines(rows.pieces("event", arrows, waits))

    def _communication_rows(
        self, trace: RankTrace, columns: Columns, block: np.ndarray, track: int
    ) -> tuple[Rows, dict[int, bytes]]:
        """Filled rows, and for those that waited the slice that shows for whom."""
        table, names = self.collectives, self.texts.names.numbers
        works = [trace.work_collectives[-1 - number] for number in columns.signature[block].tolist()]
        first = np.array([parts[0] for parts in works], np.int64)
        rows = self.communication_layout.rows(len(block))
        for name, values in table.columns.items():
            rows.put(name, values[first])
        rows.put("name", np.array([names[self._communication_name(trace.rank, parts)] for parts in works]))
        rows.put("bytes", np.array([sum(self.run.collectives[c].bytes for c in parts) for parts in works]))
        rows.put("num_coalesced", np.array([len(parts) for parts in works]))
        rows.put("category", self.texts.categories.numbers["communication"])
        rows.put_double("busbw", table.busbw[first])
        waited = np.maximum(np.minimum(table.start_ns[first], columns.end_ns[block]) - columns.start_ns[block], 0)
        rows.put("wait_ns", waited)
        return rows, self._waits(columns.start_ns[block], waited, table.last_rank[first], track)

    def _waits(self, start: np.ndarray, waited: np.ndarray, last_rank: np.ndarray, track: int) -> dict[int, bytes]:
        shown = np.flatnonzero(waited >= _SHOWN_WAIT_NS)
        names = np.array([self.texts.names.numbers[wait_name(rank)] for rank in last_rank[shown].tolist()], np.int64)
        rows = self.event_layout.rows(2 * len(shown))
        for offset, kind, time in (
            (0, layouts.SLICE_BEGIN, start[shown]),
            (1, layouts.SLICE_END, (start + waited)[shown]),
        ):
            half = Rows(rows.layout, rows.matrix[offset::2])
            for column, values in (("time", time), ("type", kind), ("name", names), ("track", track)):
                half.put(column, values)
            half.put("category", self.texts.categories.numbers["wait"])
        return {row: rows.matrix[2 * i : 2 * i + 2].tobytes() for i, row in enumerate(shown.tolist())}

    def _flows(self, trace: RankTrace, columns: Columns) -> dict[int, bytes]:
        """Row -> its arrows: one through all members of a collective, one from work to work that it held up."""
        flows: dict[int, bytes] = {}
        for row in columns.finished[columns.signature[columns.finished] < 0].tolist():
            parts = trace.work_collectives[-1 - int(columns.signature[row])]
            if self.run.collectives[parts[0]].kind != "send_recv":
                parts = parts[:1]
            flows[row] = b"".join(layouts.flow_source(c + 1) for c in parts if self.collectives.exported_members[c] > 1)
        for dependent, dependency in columns.held_up():
            flows[dependency] = flows.get(dependency, b"") + layouts.flow_source(self.next_flow)
            flows[dependent] = flows.get(dependent, b"") + layouts.flow_sink(self.next_flow)
            self.next_flow += 1
        return flows

    # memory

    def _write_memory(self, trace: RankTrace, parent: int) -> None:
        devices, times = as_int64(trace.memory_device), as_int64(trace.memory_ns)
        for device in np.unique(devices).tolist():
            on_device = np.flatnonzero(devices == device)
            on_device = on_device[np.argsort(times[on_device], kind="stable")]
            suffix = f" (device {device})" if device else ""
            for order, column in enumerate(("allocated", "reserved")):
                values = as_int64(trace.allocated_bytes if order == 0 else trace.reserved_bytes)[on_device]
                track = self._write_track(
                    parent, f"memory {column}{suffix}", 200 + 2 * device + order, share_axis=f"memory {device}"
                )
                changed = np.flatnonzero(np.diff(values, prepend=-1))
                self._write_counter(times[on_device][changed], values[changed], track)

    def _write_counter(self, times: np.ndarray, values: np.ndarray, track: int) -> None:
        for at in range(0, len(times), _BLOCK_ROWS):
            rows = self.counter_layout.rows(len(times[at : at + _BLOCK_ROWS]))
            rows.put("time", times[at : at + _BLOCK_ROWS])
            rows.put("value", values[at : at + _BLOCK_ROWS])
            rows.put("track", track)
            self.file.write(memoryview(rows.matrix).cast("B"))
