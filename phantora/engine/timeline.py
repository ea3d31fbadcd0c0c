"""Device work of one rank in virtual time: streams, events, and what waits for what.

A stream runs its items in issue order; an item begins at max(host time of its launch, end of the stream's previous item,
events waited for). Nothing here needs a global order: kernels of one rank do not influence another's, so an item is evaluated
as soon as its inputs are known. Only a collective couples ranks: its stream stops until `Collectives` says when it ended.
(`contended_timeline` has the variant in which kernels and collectives of one GPU slow each other down.)

Rows of the trace are numbered in host issue order, when a record arrives, not when it is evaluated: so they are the same in
every run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from phantora.compute.power import GpuPower
from phantora.engine.clock_governor import ClockGovernor, DrawFields
from phantora.engine.protocol import RECORD, Kind
from phantora.trace.model import RankTrace

OP, RECORD_EVENT, WAIT, COLLECTIVE, MARKER = range(5)  # kinds of items: (kind, host_ns, what, duration_ns of an OP)

Waiter = Callable[[int], None]


class Event:
    """One recording of an event: when everything before it on its stream was done (None: not known yet)."""

    __slots__ = ("time_ns", "rows", "waiters")

    def __init__(self, rows: tuple[int, ...] = ()) -> None:
        self.time_ns: int | None = None
        self.rows = rows  # the work it stands behind
        self.waiters: list[Waiter] = []

    def resolve(self, time_ns: int) -> None:
        self.time_ns = time_ns
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter(time_ns)

    def when_known(self, waiter: Waiter) -> None:
        """Call `waiter(time_ns)` once the time is known (now, if it is)."""
        if self.time_ns is not None:
            waiter(self.time_ns)
        else:
            self.waiters.append(waiter)


class Stream:
    """One CUDA stream. `queue` holds items that cannot be evaluated yet; it is empty while the stream's end is known.

    last_row and waits follow the order of issue: they do not depend on what has been evaluated.
    """

    __slots__ = ("device", "number", "end_ns", "last_row", "waits", "queue", "stopped_by")

    def __init__(self, device: int, number: int) -> None:
        self.device, self.number = device, number
        self.end_ns = 0
        self.last_row = -1
        self.waits: dict[tuple[int, int], int] = {}  # (device, stream) -> its latest row that what comes next waits for
        self.queue: deque[tuple[Any, ...]] = deque()
        self.stopped_by: Any = None  # the Event or the collective kernel it waits for


class CollectiveKernel:
    """One launch of communication by one rank: one or more collectives that begin together and end when all have ended."""

    __slots__ = ("rank", "stream", "row", "parts", "unfinished", "ready_ns", "end_ns", "done")

    def __init__(self, rank: int, stream: Stream, row: int, parts: list[Any]) -> None:
        self.rank, self.stream, self.row, self.parts = rank, stream, row, parts
        self.done = Event((row,))
        self.unfinished = len(parts)
        self.ready_ns = self.end_ns = -1


class RankTimeline:
    """Evaluates the records of one rank into its RankTrace.

    power: how the clocks of the rank's GPUs follow from what they run; None: they do not.
    arrive(kernel, ready_ns): called when a collective kernel gets to the head of its stream; the caller later calls
    finish_collective(kernel, end_ns) once, when all its parts have ended.
    """

    queues_kernels = False  # whether even a kernel whose inputs are known is queued instead of evaluated

    def __init__(
        self, rank: int, arrive: Callable[[CollectiveKernel, int], None], power: GpuPower | None = None
    ) -> None:
        self.rank = rank
        self.power = power
        self.trace = RankTrace(rank)
        self.clock_ns = 0  # the latest host time of the rank's main clock that is known
        self.events: dict[int, Event] = {}
        self.streams: dict[tuple[int, int], Stream] = {}
        self.durations: list[int] = []  # by the rank's own signature number
        self.draws: list[DrawFields] = []  # the same; may be empty without `power`
        self.governors: dict[tuple[int, int], ClockGovernor] = {}  # by device and host thread
        self.signatures: list[int] = []  # the rank's own signature number -> number in the run
        self.collective_calls: dict[int, list[Any]] = {}  # announced collectives that have no record yet
        self.strings: dict[int, str] = {}
        self.communicators: dict[Any, Event] = {}  # when the latest kernel of each communicator is done
        self._arrive = arrive

    def stream(self, device: int, number: int) -> Stream:
        key = (device, number)
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = self._new_stream(device, number)
        return found

    def _new_stream(self, device: int, number: int) -> Stream:
        return Stream(device, number)

    def event(self, number: int) -> Event | None:
        return self.events.get(number)

    # -------------------------------------------------------------- records

    def process(self, data: bytes) -> None:
        """Take in a batch of records (protocol.RECORD), in host issue order."""
        if len(data) % RECORD.size:
            raise ValueError(f"rank {self.rank}: a batch of records of {len(data)} bytes is not whole")
        streams, trace = self.streams, self.trace
        devices, numbers, issue = trace.device, trace.stream, trace.issue_ns
        signature, starts, ends, threads = trace.signature, trace.start_ns, trace.end_ns, trace.thread
        clock_ns, queues_kernels, power = self.clock_ns, self.queues_kernels, self.power
        for kind, device, thread, host_ns, a, b, c in RECORD.iter_unpack(data):
            if thread == 0 and host_ns > clock_ns:
                clock_ns = host_ns
            if kind == Kind.OP:
                stream = streams.get((device, b)) or self.stream(device, b)
                row = len(starts)
                devices.append(device)
                numbers.append(b)
                issue.append(host_ns)
                threads.append(thread)
                signature.append(self.signatures[a])
                if stream.waits:
                    self._depend(stream, row)
                stream.last_row = row
                duration_ns = self.durations[a] if power is None else self._governed_ns(device, thread, a, host_ns)
                if queues_kernels or stream.queue or stream.stopped_by is not None:
                    starts.append(-1)
                    ends.append(-1)
                    stream.queue.append((OP, host_ns, row, duration_ns))
                    continue
                begin_ns = host_ns if host_ns > stream.end_ns else stream.end_ns
                end_ns = begin_ns + duration_ns
                starts.append(begin_ns)
                ends.append(end_ns)
                stream.end_ns = end_ns
            elif kind == Kind.ALLOC or kind == Kind.FREE:
                trace.memory_device.append(device)
                trace.memory_ns.append(host_ns)
                trace.memory_thread.append(thread)
                trace.allocated_bytes.append(b)
                trace.reserved_bytes.append(c)
            else:
                self._other(kind, device, thread, host_ns, a, b, c)
        self.clock_ns = clock_ns

    def _governed_ns(self, device: int, thread: int, number: int, host_ns: int) -> int:
        """Time of a kernel at the clock that the power limit leaves."""
        governor = self.governors.get((device, thread))
        if governor is None:
            assert self.power is not None
            governor = self.governors[device, thread] = ClockGovernor(self.power)
        return governor.duration_ns(self.draws[number], self.durations[number], host_ns)

    def _other(self, kind: int, device: int, thread: int, host_ns: int, a: int, b: int, c: int) -> None:
        if kind == Kind.EVENT_RECORD:
            stream = self.stream(device, b)
            event = self.events[a] = Event(self._rows_behind(stream))
            self._issue(stream, (RECORD_EVENT, host_ns, event))
        elif kind == Kind.EVENT_WAIT:
            event = self.events.get(a)
            if event is not None:
                self._wait_for(self.stream(device, b), host_ns, event)
        elif kind == Kind.EVENT_DESTROY:
            self.events.pop(a, None)
        elif kind == Kind.COLLECTIVE:
            self._collective(self.stream(device, b), thread, host_ns, a)
        elif kind == Kind.HOST_WAIT:
            self.host_wait(a, host_ns, ("stream", "event", "device")[b], thread, self._waited_rows(device, b, c))
        elif kind == Kind.MARK:
            self.trace.mark_ns.append(host_ns)
            self.trace.mark_name.append(self.strings.get(a, ""))
            self.trace.mark_depth.append(b)
        elif kind != Kind.RECORD_STREAM:
            raise ValueError(f"rank {self.rank}: record of unknown kind {kind}")

    def _collective(self, stream: Stream, thread: int, host_ns: int, call: int) -> None:
        trace = self.trace
        parts = self.collective_calls.pop(call)
        row = len(trace.start_ns)
        trace.device.append(stream.device)
        trace.stream.append(stream.number)
        trace.issue_ns.append(host_ns)
        trace.thread.append(thread)
        trace.signature.append(-1 - len(trace.work_collectives))
        trace.work_collectives.append(())  # numbered when the run is finished
        trace.start_ns.append(-1)
        trace.end_ns.append(-1)
        kernel = CollectiveKernel(self.rank, stream, row, parts)
        for part in parts:
            part.joined(kernel)
        # NCCL runs the kernels of one communicator one after the other, whatever streams they were launched on
        # (ncclLaunchPrepare in src/enqueue.cc: each waits for the communicator's device stream).
        communicator = parts[0].communicator
        previous = self.communicators.get(communicator)
        if previous is not None:
            self._wait_for(stream, host_ns, previous)
        self.communicators[communicator] = kernel.done
        self._depend(stream, row)
        stream.last_row = row
        self._issue(stream, (COLLECTIVE, host_ns, kernel))

    # -------------------------------------------------------------- what waits for what

    def _rows_behind(self, stream: Stream) -> tuple[int, ...]:
        """The rows at whose end everything now issued on `stream` is done."""
        rows = tuple(stream.waits.values())
        return (stream.last_row, *rows) if stream.last_row >= 0 else rows

    def _wait_for(self, stream: Stream, host_ns: int, event: Event) -> None:
        """What is issued on `stream` from now on waits for `event`. (Order within a stream needs no mention.)"""
        own = (stream.device, stream.number)
        for row in event.rows:
            source = (self.trace.device[row], self.trace.stream[row])
            if source != own:
                stream.waits[source] = max(row, stream.waits.get(source, -1))
        self._issue(stream, (WAIT, host_ns, event))

    def _depend(self, stream: Stream, row: int) -> None:
        for earlier in stream.waits.values():
            self.trace.dependent.append(row)
            self.trace.dependency.append(earlier)
        stream.waits.clear()

    def _waited_rows(self, device: int, what: int, number: int) -> tuple[int, ...]:
        """The rows whose end a host waits for that synchronizes with a stream, an event or a device."""
        if what == 0:
            return self._rows_behind(self.stream(device, number))
        if what == 1:
            event = self.events.get(number)
            return event.rows if event is not None else ()
        streams = [stream for stream in self.streams.values() if stream.device == device]
        return tuple(sorted({row for stream in streams for row in self._rows_behind(stream)}))

    def host_wait(
        self, begin_ns: int, end_ns: int, reason: str, thread: int, rows: tuple[int, ...] = (),
        peers: tuple[tuple[int, int], ...] = (), delay_ns: int = 0,
    ) -> int:  # fmt: skip
        """Keep a wait (or a point) of a host thread, see trace.model.RankTrace; its number."""
        trace = self.trace
        trace.wait_begin_ns.append(begin_ns)
        trace.wait_end_ns.append(end_ns)
        trace.wait_reason.append(reason)
        trace.wait_position.append(len(trace.start_ns))
        trace.wait_thread.append(thread)
        trace.wait_rows.append(rows)
        trace.wait_peers.append(peers)
        trace.wait_delay_ns.append(delay_ns)
        return len(trace.wait_reason) - 1

    # -------------------------------------------------------------- evaluation

    def _issue(self, stream: Stream, item: tuple[Any, ...]) -> None:
        if stream.queue or stream.stopped_by is not None:
            stream.queue.append(item)
        else:
            self._evaluate(stream, item)

    def _evaluate(self, stream: Stream, item: tuple[Any, ...]) -> None:
        """Run one item at the head of a stream; may leave the stream stopped."""
        kind, host_ns, what = item[:3]
        ready_ns = max(host_ns, stream.end_ns)
        if kind == OP:
            stream.end_ns = ready_ns + item[3]
            self.trace.start_ns[what], self.trace.end_ns[what] = ready_ns, stream.end_ns
        elif kind == RECORD_EVENT:
            what.resolve(ready_ns)
        elif kind == WAIT:
            if what.time_ns is not None:
                self._pass(stream, what)
            else:
                stream.stopped_by = what
                what.when_known(lambda _: self._resume_after(stream, what))
        elif kind == COLLECTIVE:
            stream.stopped_by = what
            what.ready_ns = ready_ns
            self._arrive(what, ready_ns)
        else:
            what(stream.end_ns)

    def _pass(self, stream: Stream, event: Event) -> None:
        assert event.time_ns is not None
        stream.end_ns = max(stream.end_ns, event.time_ns)

    def _resume_after(self, stream: Stream, event: Event) -> None:
        self._pass(stream, event)
        self._resume(stream)

    def finish_collective(self, kernel: CollectiveKernel, end_ns: int) -> None:
        """All parts of `kernel` have ended; its stream goes on."""
        trace, stream = self.trace, kernel.stream
        kernel.end_ns = end_ns
        trace.start_ns[kernel.row], trace.end_ns[kernel.row] = kernel.ready_ns, end_ns
        stream.end_ns = end_ns
        self._resume(stream)
        kernel.done.resolve(end_ns)

    def _resume(self, stream: Stream) -> None:
        stream.stopped_by = None
        while stream.queue and stream.stopped_by is None:
            self._evaluate(stream, stream.queue.popleft())

    def when_done(self, stream: Stream, waiter: Waiter) -> None:
        """Call `waiter(end_ns)` when everything now issued on `stream` is done (at once, if that is known)."""
        self._issue(stream, (MARKER, 0, waiter))

    def close(self) -> None:
        """No more records or events will come."""
