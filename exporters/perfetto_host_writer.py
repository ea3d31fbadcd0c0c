"""The rows of a rank's host threads, written block by block (perfetto_host.py says what is on them)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from phantora.exporters import perfetto_layouts as layouts
from phantora.exporters.perfetto_file import TraceFile
from phantora.exporters.perfetto_host import HostEvent, HostThread, host_threads, nested_events
from phantora.exporters.perfetto_tables import Interned, communication_name
from phantora.exporters.protobuf_rows import BLOCK_ROWS, Rows

from phantora.trace.columns import as_int64
from phantora.trace.model import RankTrace, Run


class HostWriter:
    """Writes host threads. kernel_names: number of the name of each signature, so that a launch has the name, and with
    it the colour, of what it launches."""

    def __init__(
        self,
        run: Run,
        file: TraceFile,
        texts: Interned,
        kernel_names: np.ndarray,
        widths: layouts.Widths,
        launches: bool,
    ) -> None:
        self.run, self.file, self.texts, self.kernel_names, self.launches = run, file, texts, kernel_names, launches
        self.launch_layout = layouts.launch_layout(widths)
        self.event_layout = layouts.event_layout(widths)

    def write(self, trace: RankTrace, parent: int, first_flow: int) -> None:
        """The threads of one rank below the process `parent`; first_flow: number of the arrow to its first row."""
        order = 0
        for thread in host_threads(trace, self.run.cluster, self.launches):
            name = "host" if thread.number == 0 else f"host thread {thread.number}"
            track = self.file.thread(trace.rank, thread.number, name, order)
            self._write_thread(trace, thread, track, first_flow)
            for lane in thread.lanes[1:]:
                order += 1
                beside = self.file.track(parent, f"{name} (overlapping)", order)
                self.file.rows(self._event_rows(nested_events(lane), beside))
            order += 1

    def _write_thread(self, trace: RankTrace, thread: HostThread, track: int, first_flow: int) -> None:
        """Events between launches; at one and the same time a launch ends before anything begins."""
        listed, launches = thread.events, thread.launches
        events = self._event_rows(listed, track)
        num_before = np.searchsorted(launches.end_ns, [event[0] for event in listed], side="right")
        first = bisect_right(num_before.tolist(), 0)
        self.file.rows(Rows(events.layout, events.matrix[:first]))
        for at in range(0, len(launches.rows), BLOCK_ROWS):
            until = min(at + BLOCK_ROWS, len(launches.rows))
            begin, end = np.searchsorted(num_before, [at + 1, until + 1])
            after: dict[int, bytes] = {}
            for i, number in zip(range(begin, end), num_before[begin:end].tolist()):
                after[number - 1 - at] = after.get(number - 1 - at, b"") + events.matrix[i].tobytes()
            rows = self._launch_rows(trace, thread, at, until, track)
            rows.put_fixed("flow", first_flow + launches.rows[at:until])
            self.file.file.writelines(rows.pieces("end", {}, after))

    def _launch_rows(self, trace: RankTrace, thread: HostThread, at: int, until: int, track: int) -> Rows:
        signature = as_int64(trace.signature)[thread.launches.rows[at:until]]
        rows = self.launch_layout.rows(len(signature))
        rows.put("begin", thread.launches.begin_ns[at:until])
        rows.put("end", thread.launches.end_ns[at:until])
        rows.put("name", self._names(trace, signature))
        rows.put("category", self.texts.categories.numbers["launch"])
        rows.put("track", track)
        rows.put("end_track", track)
        return rows

    def _names(self, trace: RankTrace, signature: np.ndarray) -> np.ndarray:
        names, is_kernel = np.zeros(len(signature), np.int64), signature >= 0
        names[is_kernel] = self.kernel_names[signature[is_kernel]]
        works = [trace.work_collectives[-1 - number] for number in signature[~is_kernel].tolist()]
        numbers = self.texts.names.numbers
        names[~is_kernel] = [numbers[communication_name(self.run, trace.rank, parts)] for parts in works]
        return names

    def _event_rows(self, events: list[HostEvent], track: int) -> Rows:
        names, categories = self.texts.names.numbers, self.texts.categories.numbers
        rows = self.event_layout.rows(len(events))
        if events:
            numbers = np.array([(t, kind, names[name], categories[cat]) for t, kind, name, cat in events], np.int64)
            for column, values in zip(("time", "type", "name", "category"), numbers.T):
                rows.put(column, values)
            rows.put("track", track)
        return rows
