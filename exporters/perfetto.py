"""A recorded run as a Perfetto trace (open it at ui.perfetto.dev).

One process per rank: a thread for its host, a track per device stream, counters of memory and links; arrows lead from
launch to kernel, join the members of a collective, and lead from work to work that waited for it through an event. The
file is written rank by rank, track by track, in blocks of rows: neither the trace nor a rank is ever whole in memory.
Equal runs give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket
from phantora.exporters import perfetto_layouts as layouts
from phantora.exporters.lanes import disjoint_lanes
from phantora.exporters.perfetto_file import TraceFile
from phantora.exporters.perfetto_host import blocked_name
from phantora.exporters.perfetto_host_writer import HostWriter
from phantora.exporters.perfetto_rank import (
    Columns, chosen_ranks, last_ns, rank_title, stream_title, tells_launches, wait_name,
)  # fmt: skip
from phantora.exporters.perfetto_tables import CollectiveTable, Interned, KernelTable, communication_name
from phantora.exporters.protobuf_rows import BLOCK_ROWS, Rows, varint_width

from phantora.trace.columns import as_int64
from phantora.trace.counters import CounterSeries
from phantora.trace.model import RankTrace, Run

_SHOWN_WAIT_NS = 1000  # a wait for the last member of a collective is drawn from this length on
_LAUNCH_FLOWS = 1 << 40  # numbers of arrows from launches begin here
_STREAM_ORDER, _MEMORY_ORDER, _COUNTER_ORDER = 1_000, 1_000_000, 2_000_000  # of the rows of a rank


def write_perfetto(
    run: Run, path: Path | str, ranks: Sequence[int] | None = None, *, launches: bool = True,
    counters: Sequence[CounterSeries] = (),
) -> Path:  # fmt: skip
    """Write the file `path` (by custom `trace.pftrace`) and return it.

    ranks: only these (default: all). launches: draw a slice for each launch, with an arrow to what it launched; this
    doubles the number of slices. counters: drawn below the streams of their ranks. UserError for a rank that is not in
    the run.
    """
    chosen = chosen_ranks(run, ranks)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=1 << 20) as file:
        _TraceWriter(run, chosen, launches, counters, file).write()
    return path


class _TraceWriter:
    """Writes one file: texts first, then rank by rank its tracks and the rows on them."""

    def __init__(
        self, run: Run, ranks: list[RankTrace], launches: bool, counters: Sequence[CounterSeries], file: BinaryIO
    ) -> None:
        self.run, self.ranks, self.file, self.counters = run, ranks, file, counters
        self.trace_file = TraceFile(file)
        self.launches = launches and tells_launches(ranks)
        self.texts = Interned()
        self.kernels = KernelTable.of(run.signatures, self.texts)
        self.collectives = CollectiveTable.of(run, ranks, self.texts)
        self._number_other_texts()
        last = max([last_ns(run, ranks), *(int(c.times_ns[-1]) for c in counters if len(c.times_ns))])
        widths = layouts.Widths(
            time=varint_width(last),
            name=varint_width(len(self.texts.names.numbers)),
            string=varint_width(len(self.texts.strings.numbers)),
        )
        arguments = self.texts.argument_names
        self.kernel_rows = self._filled_kernel_rows(layouts.kernel_layout(widths, arguments, self.launches))
        self.communication_layout = layouts.communication_layout(widths, arguments, self.launches)
        self.event_layout = layouts.event_layout(widths)
        self.host = HostWriter(run, self.trace_file, self.texts, self.kernels.columns["name"], widths, self.launches)
        self.counter_layout = layouts.counter_layout(widths)
        self.rate_layout = layouts.rate_layout(widths)
        self.next_flow = len(run.collectives) + 1
        self.launch_flow = _LAUNCH_FLOWS  # that of the first row of the present rank

    def write(self) -> None:
        """Write the whole trace."""
        self._write_interned()
        self.trace_file.root()
        for trace in self.ranks:
            parent = self.trace_file.process(trace.rank, rank_title(self.run, trace.rank))
            self.host.write(trace, parent, self.launch_flow)
            self._write_streams(trace, parent)
            self._write_memory(trace, parent)
            self._write_counters(trace, parent)
            self.launch_flow += len(trace.issue_ns)

    # texts

    def _number_other_texts(self) -> None:
        names, categories = self.texts.names, self.texts.categories
        for category in ("communication", "wait", "blocked", "range", "launch"):
            categories.number(category)
        for trace in self.ranks:
            for name in dict.fromkeys([*map(blocked_name, trace.wait_reason), *trace.mark_name]):
                names.number(name)
            names.number(wait_name(trace.rank))
            for parts in dict.fromkeys(trace.work_collectives):
                names.number(communication_name(self.run, trace.rank, parts))

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
        self.trace_file.packet(packet)

    # device work

    def _write_streams(self, trace: RankTrace, parent: int) -> None:
        columns = Columns.of(trace)
        flows = self._flows(trace, columns)
        for order, (device, stream, communication, index) in enumerate(columns.tracks()):
            title = stream_title(
                trace, device if columns.several_devices or device < 0 else None, stream, communication
            )
            lanes = disjoint_lanes(columns.start_ns[index], columns.end_ns[index])
            for lane in range(int(lanes.max()) + 1):
                name = title if lane == 0 else f"{title} (overlap {lane})"
                track = self.trace_file.track(parent, name, _STREAM_ORDER + order)
                self._write_slices(trace, columns, index[lanes == lane], track, communication, flows)

    def _write_slices(
        self, trace: RankTrace, columns: Columns, index: np.ndarray, track: int, communication: bool,
        flows: dict[int, bytes],
    ) -> None:  # fmt: skip
        for at in range(0, len(index), BLOCK_ROWS):
            block = index[at : at + BLOCK_ROWS]
            if communication:
                rows, waits = self._communication_rows(trace, columns, block, track)
            else:
                rows, waits = self.kernel_rows.take(columns.signature[block]), {}
            rows.put("begin", columns.start_ns[block])
            rows.put("end", columns.end_ns[block])
            issued = columns.issue_ns[block]
            rows.put("queued_ns", np.where(issued >= 0, np.maximum(columns.start_ns[block] - issued, 0), 0))
            rows.put("track", track)
            rows.put("end_track", track)
            if self.launches:
                rows.put_fixed("launch_flow", self.launch_flow + block)
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
        rows.put("name", np.array([names[communication_name(self.run, trace.rank, parts)] for parts in works]))
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
                order_of = _MEMORY_ORDER + 2 * device + order
                name = f"memory {column}{suffix}"
                track = self.trace_file.counter(parent, name, order_of, unit="bytes", axis=f"memory {device}")
                changed = np.flatnonzero(np.diff(values, prepend=-1))
                self._write_counter(times[on_device][changed], values[changed], track)

    def _write_counters(self, trace: RankTrace, parent: int) -> None:
        for order, series in enumerate(counter for counter in self.counters if counter.rank == trace.rank):
            track = self.trace_file.counter(
                parent, series.name, _COUNTER_ORDER + order, unit=series.unit, axis=series.axis
            )
            self._write_counter(series.times_ns, series.values, track)

    def _write_counter(self, times: np.ndarray, values: np.ndarray, track: int) -> None:
        is_integer = np.issubdtype(values.dtype, np.integer)
        for at in range(0, len(times), BLOCK_ROWS):
            layout = self.counter_layout if is_integer else self.rate_layout
            rows = layout.rows(len(times[at : at + BLOCK_ROWS]))
            rows.put("time", times[at : at + BLOCK_ROWS])
            put = rows.put if is_integer else rows.put_double
            put("value", values[at : at + BLOCK_ROWS])
            rows.put("track", track)
            self.trace_file.rows(rows)
