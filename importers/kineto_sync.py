"""Who waited for whom in a Kineto file: streams for events, and the host for streams, events, devices and copies.

Traces with records of category cuda_sync name the stream and the event of each wait. Others have the calls alone; then
what was waited for is what the times and the order of calls allow, and the report says how often.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from phantora.importers.kineto_events import KinetoFile, Span, Thread
from phantora.importers.kineto_nesting import Context
from phantora.importers.kineto_rows import CLOCK_NS, Row
from phantora.importers.report import ImportReport
from phantora.importers.waits import HostWait

_STREAM_SYNCS = {"cudaStreamSynchronize", "hipStreamSynchronize", "cuStreamSynchronize"}
_EVENT_SYNCS = {"cudaEventSynchronize", "hipEventSynchronize", "cuEventSynchronize"}
_DEVICE_SYNCS = {"cudaDeviceSynchronize", "hipDeviceSynchronize", "cuCtxSynchronize", "cudaThreadSynchronize"}
_FREES = {"cudaFree", "cudaFreeHost", "hipFree", "hipHostFree", "cuMemFree", "cuMemFreeHost"}
_STREAM_WAITS = {"cudaStreamWaitEvent", "hipStreamWaitEvent", "cuStreamWaitEvent"}
# CUDA's "API synchronization behavior": cudaMemcpy returns after the copy; cudaMemcpyAsync from the device to pageable
# memory does too, and from pageable memory above 64 KiB the copy to the staging buffer waits its turn.
_COPIES = {
    "cudaMemcpy", "cudaMemcpy2D", "cudaMemcpy3D", "cudaMemcpyToSymbol", "cudaMemcpyFromSymbol", "hipMemcpy",
    "hipMemcpy2D", "hipMemcpyWithStream", "hipMemcpyDtoH", "hipMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyHtoD", "cuMemcpy",
}  # fmt: skip
_STAGED_BYTES = 65536
_LATE_NS = 20_000  # longer than a launch on an idle device takes
_NUM_TRIED = 16


@dataclass(slots=True)
class Waits:
    """host: waits of the host; dependencies: (row, row it waited for) through events, ordered, each once."""

    host: list[HostWait] = field(default_factory=list)
    dependencies: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class _Line:
    """Rows of one stream or thread, ascending, with their launch times."""

    issue_ns: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def before(self, time_ns: int) -> int:
        at = bisect_left(self.issue_ns, time_ns)
        return self.rows[at - 1] if at else -1

    def since(self, time_ns: int) -> int:
        at = bisect_left(self.issue_ns, time_ns)
        return self.rows[at] if at < len(self.rows) else -1


def find_waits(
    file: KinetoFile,
    rows: list[Row],
    threads: dict[Thread, int],
    call_contexts: dict[int, Context],
    report: ImportReport,
) -> Waits:
    """threads: their numbers as in RankTrace.thread; call_contexts: position in file.calls -> where the call was made,
    for calls that make a stream wait."""
    return _Finder(file, rows, threads, call_contexts, report).find()


def is_stream_wait(call: Span) -> bool:
    """Whether a call makes a stream wait for an event."""
    return _plain(call.name) in _STREAM_WAITS


def _plain(name: str) -> str:
    return name.split("_", 1)[0]


class _Finder:
    def __init__(
        self, file: KinetoFile, rows: list[Row], numbers: dict[Thread, int], call_contexts: dict[int, Context],
        report: ImportReport,
    ) -> None:  # fmt: skip
        self.file, self.rows, self.report, self.call_contexts = file, rows, report, call_contexts
        self.numbers = numbers
        self.issue_ns = [row.issue_ns for row in rows]
        self.streams: dict[tuple[int, int], _Line] = {}
        self.threads: dict[int, _Line] = {}
        self.by_correlation: dict[int, list[int]] = {}
        self.comm_rows: dict[int, list[int]] = {}  # begin of a c10d record -> kernels launched in it
        self.comm_streams: dict[tuple[int, int], None] = {}
        for number, row in enumerate(rows):
            self._enter(number, row)
        self.calls = {call.correlation: call for call in file.calls if call.correlation >= 0}
        self.found: dict[tuple[int, int], None] = {}
        self.waits: list[HostWait] = []

    def _enter(self, number: int, row: Row) -> None:
        lines = [self.streams.setdefault(row.stream, _Line())]
        if row.thread is not None:
            lines.append(self.threads.setdefault(self.numbers[row.thread], _Line()))
        for line in lines:
            line.issue_ns.append(row.issue_ns)
            line.rows.append(number)
        self.by_correlation.setdefault(row.work.correlation, []).append(number)
        if row.communicates:
            self.comm_streams[row.stream] = None
            if row.context.comm is not None:
                self.comm_rows.setdefault(id(row.context.comm), []).append(number)

    def find(self) -> Waits:
        """All waits."""
        order = sorted(range(len(self.file.calls)), key=lambda i: (self.file.calls[i].begin_ns, i))
        for number in order:
            call = self.file.calls[number]
            name = _plain(call.name)
            if name in _STREAM_SYNCS:
                self._host_wait(call, "stream", self._stream_rows(call))
            elif name in _EVENT_SYNCS:
                self._host_wait(call, "event", self._event_rows(call))
            elif name in _DEVICE_SYNCS:
                self._host_wait(call, "device", self._last_rows(call))
            elif name in _FREES:
                self._free(call)
            elif name in _STREAM_WAITS:
                self._stream_wait(number, call)
            elif call.correlation in self.by_correlation:
                self._copy(call, name)
        if len(self.streams) > 1 and not any(is_stream_wait(call) for call in self.file.calls):
            self._explain_starts()
        return Waits(self.waits, sorted(self.found))

    # the host

    def _host_wait(self, call: Span, reason: str, rows: list[int], position: int | None = None) -> None:
        known = [row for row in rows if self.rows[row].work.end_ns <= call.end_ns + CLOCK_NS]
        if len(known) < len(rows):
            self.report.doubt("work that ended after the host had waited for it", call.name, len(rows) - len(known))
        if not known:
            if not rows:
                self.report.leave_out("waits of the host for nothing that is in the trace", call.name)
            return
        begin, position = call.begin_ns, bisect_left(self.issue_ns, call.begin_ns) if position is None else position
        if reason == "copy":  # the copy is launched first
            begin = max(begin, *(self.issue_ns[row] for row in known))
        self.waits.append(HostWait(begin, max(begin, call.end_ns), reason, position, call.thread, tuple(sorted(known))))

    def _last_rows(self, call: Span) -> list[int]:
        sync = self.file.syncs.get(call.correlation)
        device = self._device(call) if sync is None or sync.device < 0 else sync.device
        found = [
            line.before(call.begin_ns) for (where, _), line in self.streams.items() if where == device or device < 0
        ]
        return [row for row in found if row >= 0]

    def _device(self, call: Span) -> int:
        """The device that a thread works on: that of its last launch; -1 when it launches nothing."""
        line = self.threads.get(self.numbers[call.thread])
        row = line.before(call.begin_ns) if line else -1
        return self.rows[row].work.device if row >= 0 else -1

    def _stream_rows(self, call: Span) -> list[int]:
        sync = self.file.syncs.get(call.correlation)
        if sync is not None and sync.stream >= 0:
            line = self.streams.get((sync.device if sync.device >= 0 else self._device(call), sync.stream))
            row = line.before(call.begin_ns) if line else -1
            return [row] if row >= 0 else []
        return self._guessed_rows(call, "streams that the host waited for: the trace does not name them")

    def _event_rows(self, call: Span) -> list[int]:
        sync = self.file.syncs.get(call.correlation)
        record = self.calls.get(sync.record_correlation) if sync is not None else None
        if sync is not None and record is not None and sync.source_stream >= 0:
            row = self._source(sync.device, sync.source_stream, record)
            return [row] if row >= 0 else []
        return self._guessed_rows(call, "events that the host waited for: the trace does not name them")

    def _source(self, device: int, stream: int, record: Span) -> int:
        line = self.streams.get((device if device >= 0 else self._device(record), stream))
        return line.before(record.begin_ns) if line else -1

    def _guessed_rows(self, call: Span, what: str) -> list[int]:
        """The stream of what the thread launched last, if that had ended; else the work that ended last in time."""
        line = self.threads.get(self.numbers[call.thread])
        recent = line.before(call.begin_ns) if line else -1
        candidates = [other.before(call.begin_ns) for other in self.streams.values()]
        in_time = [row for row in candidates if row >= 0 and self.rows[row].work.end_ns <= call.end_ns + CLOCK_NS]
        if not in_time:
            return []
        latest = max(in_time, key=lambda row: (self.rows[row].work.end_ns, row))
        if recent >= 0 and self.streams[self.rows[recent].stream].before(call.begin_ns) in in_time:
            own = self.streams[self.rows[recent].stream].before(call.begin_ns)
            blocked = self.rows[latest].work.end_ns > call.begin_ns and self.rows[own].work.end_ns < call.begin_ns
            latest = latest if blocked else own
        if len(self.streams) > 1:
            self.report.guess(what, call.name)
        return [latest]

    def _free(self, call: Span) -> None:
        """Freeing memory waits for the device, unless the driver knows better."""
        pending = [row for row in self._last_rows(call) if self.rows[row].work.end_ns > call.begin_ns]
        if pending and all(self.rows[row].work.end_ns <= call.end_ns for row in pending):
            self._host_wait(call, "device", pending)

    def _copy(self, call: Span, name: str) -> None:
        rows = self.by_correlation[call.correlation]
        copies = [
            row for row in rows if self._holds_host(name, row) and self.rows[row].work.end_ns <= call.end_ns + CLOCK_NS
        ]
        if copies:
            self._host_wait(call, "copy", copies, position=max(copies) + 1)

    def _holds_host(self, name: str, row: int) -> bool:
        work = self.rows[row].work
        if work.kind != "memcpy":
            return False
        if name in _COPIES:
            return "DtoD" not in work.name
        if "Pageable" not in work.name:
            return False
        return "DtoH" in work.name or (work.bytes > _STAGED_BYTES and "HtoD" in work.name)

    # streams

    def _stream_wait(self, number: int, call: Span) -> None:
        sync = self.file.syncs.get(call.correlation)
        if sync is None:
            self._guess_stream_wait(call, self.call_contexts.get(number, Context()))
            return
        record = self.calls.get(sync.record_correlation)
        line = self.streams.get((sync.device if sync.device >= 0 else self._device(call), sync.stream))
        if record is None or sync.source_stream < 0:
            self.report.leave_out("waits of streams for events recorded before the trace began", call.name)
            return
        source = self._source(sync.device, sync.source_stream, record)
        dependent = line.since(call.begin_ns) if line else -1
        if source < 0 or dependent < 0:
            self.report.leave_out("waits of streams without work before the event or after the wait", call.name)
        elif self._depend(dependent, source):
            self.report.take("waits of streams for events")
        else:
            self.report.doubt(
                "work that began before the end of what its stream had waited for", self.rows[dependent].work.name
            )

    def _depend(self, dependent: int, source: int) -> bool:
        """Note a dependency; False when times contradict it."""
        if source >= dependent or self.rows[source].work.end_ns > self.rows[dependent].work.begin_ns + CLOCK_NS:
            return False
        if self.rows[source].stream != self.rows[dependent].stream:
            self.found[dependent, source] = None
        return True

    def _guess_stream_wait(self, call: Span, context: Context) -> None:
        launched = self.comm_rows.get(id(context.comm), ()) if context.comm is not None else ()
        later = [row for row in launched if self.issue_ns[row] >= call.begin_ns]
        if later:  # before a collective its stream waits for the stream that made the data
            source = self._last_compute(call)
            if source < 0 or not self._depend(later[0], source):
                self.report.leave_out("waits of streams before a collective for work that is not known", call.name)
            else:
                self.report.guess("waits of streams for events that the trace does not name", call.name)
            return
        if launched:
            self.report.leave_out("waits of streams inside NCCL, after its launch", call.name)
            return
        line = self.threads.get(self.numbers[call.thread])
        dependent = line.since(call.begin_ns) if line else -1
        source = self._likely_source(call, dependent) if dependent >= 0 else -1
        if source < 0:
            self.report.leave_out("waits of streams for events that the trace does not name", call.name)
        else:
            self._depend(dependent, source)
            self.report.guess("waits of streams for events that the trace does not name", call.name)

    def _last_compute(self, call: Span) -> int:
        line = self.threads.get(self.numbers[call.thread])
        if line is None:
            return -1
        for at in range(bisect_left(line.issue_ns, call.begin_ns) - 1, -1, -1):
            if self.rows[line.rows[at]].stream not in self.comm_streams:
                return line.rows[at]
        return -1

    def _likely_source(self, call: Span, dependent: int) -> int:
        """Of the last work on each other stream, what ended last before the dependent began."""
        row = self.rows[dependent]
        others = [
            line.before(call.begin_ns)
            for stream, line in self.streams.items()
            if stream != row.stream and stream[0] == row.stream[0]
        ]
        in_time = [
            other for other in others if other >= 0 and self.rows[other].work.end_ns <= row.work.begin_ns + CLOCK_NS
        ]
        return max(in_time, key=lambda other: (self.rows[other].work.end_ns, other), default=-1)

    def _explain_starts(self) -> None:
        """Without the calls: work that began late, just when work of another stream had ended, waited for it."""
        order = sorted(range(len(self.rows)), key=lambda row: (self.rows[row].work.end_ns, row))
        ends = [self.rows[row].work.end_ns for row in order]
        stream_end: dict[tuple[int, int], int] = {}
        for number, row in enumerate(self.rows):
            ready = max(row.issue_ns, stream_end.get(row.stream, 0))
            stream_end[row.stream] = row.work.end_ns
            if row.work.begin_ns - ready < _LATE_NS:
                continue
            at = bisect_left(ends, row.work.begin_ns + CLOCK_NS)
            for other in reversed(order[max(0, at - _NUM_TRIED) : at]):
                if self.rows[other].work.end_ns < row.work.begin_ns - _LATE_NS:
                    break
                is_other = self.rows[other].stream != row.stream and self.rows[other].work.device == row.work.device
                if is_other and self._depend(number, other):
                    self.report.guess(
                        "work that began late, just as work of another stream had ended: taken to have waited for it",
                        row.work.name,
                    )
                    break
