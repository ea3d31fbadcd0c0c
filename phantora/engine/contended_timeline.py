"""Device work of one rank when kernels and collectives on one GPU slow each other down.

While a collective runs on a GPU (from the moment at which its last member is there to its end), the GPU's kernels need
`compute_factor` times as long. Collectives begin and end in the order of the event queue, so how long a kernel takes is
certain only when virtual time has got to its end. Kernels therefore stay in the queue of their stream until somebody
needs to know: an item that matters to others (an event, a wait, a collective, a marker) and stands behind kernels has
one event in the event queue, at the time at which the kernels before it end if nothing changes. When a collective
begins meanwhile, the event comes too early and is set again; when one ends, it is moved forward. So the number of
events is that of such items, not of kernels, and what is evaluated is never taken back.

A kernel's end follows from its start and from when its GPU was slow, so it does not matter how often it was predicted.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable

from phantora.compute.power import GpuPower
from phantora.engine.queue import STREAM, Entry, EventQueue
from phantora.engine.timeline import OP, WAIT, CollectiveKernel, RankTimeline, Stream

_NEVER_NS = 1 << 62


class Gpu:
    """When one GPU was slow: in [changes[0], changes[1]), [changes[2], changes[3]), ...; an odd number: it is now."""

    __slots__ = ("streams", "_factor", "_num_collectives", "_changes")

    def __init__(self, factor: float) -> None:
        self.streams: list[ContendedStream] = []
        self._factor = factor
        self._num_collectives = 0
        self._changes = array("q")

    def begin_collective(self, now_ns: int) -> None:
        self._num_collectives += 1
        if self._num_collectives == 1:
            self._change(now_ns)

    def end_collective(self, now_ns: int) -> bool:
        """Whether the GPU gets faster."""
        self._num_collectives -= 1
        if not self._num_collectives:
            self._change(now_ns)
        return not self._num_collectives

    def _change(self, now_ns: int) -> None:
        if self._changes and self._changes[-1] == now_ns:
            self._changes.pop()
        else:
            self._changes.append(now_ns)

    def end_ns(self, begin_ns: int, duration_ns: int) -> int:
        """When a kernel ends that takes `duration_ns` alone, if no collective begins or ends from now on."""
        changes = self._changes
        if not changes or begin_ns >= changes[-1]:
            return begin_ns + (math.ceil(duration_ns * self._factor) if len(changes) & 1 else duration_ns)
        left: float = duration_ns
        for index in range(bisect_right(changes, begin_ns), len(changes)):
            span_ns = changes[index] - begin_ns
            done = span_ns / self._factor if index & 1 else span_ns
            if done >= left:
                return begin_ns + math.ceil(left * self._factor if index & 1 else left)
            begin_ns, left = changes[index], left - done
        return begin_ns + math.ceil(left * self._factor if len(changes) & 1 else left)


class ContendedStream(Stream):
    """A stream whose queue may hold kernels although nothing stops it. check: its event in the queue, if any."""

    __slots__ = ("gpu", "check")

    def __init__(self, device: int, number: int, gpu: Gpu) -> None:
        super().__init__(device, number)
        self.gpu = gpu
        self.check: Entry | None = None
        gpu.streams.append(self)


class ContendedTimeline(RankTimeline):
    """As RankTimeline, told of every collective by begin_sharing() and end_sharing(); the caller steps the queue."""

    queues_kernels = True

    def __init__(
        self, rank: int, arrive: Callable[[CollectiveKernel, int], None], queue: EventQueue, compute_factor: float,
        power: GpuPower | None = None,
    ) -> None:  # fmt: skip
        super().__init__(rank, arrive, power)
        self._queue = queue
        self._factor = compute_factor
        self._gpus: dict[int, Gpu] = {}

    # -------------------------------------------------------------- collectives

    def begin_sharing(self, stream: Stream) -> None:
        """A collective that `stream` launched begins now: its GPU's kernels get slower."""
        self._gpu(stream).begin_collective(self._queue.now_ns)

    def end_sharing(self, stream: Stream) -> None:
        """A collective that `stream` launched ends now."""
        gpu = self._gpu(stream)
        if gpu.end_collective(self._queue.now_ns):
            for other in gpu.streams:
                if other.check is not None:
                    self._expect(other)

    def is_computing(self, stream: Stream) -> bool:
        """Whether a kernel that began before runs now on the GPU of `stream`."""
        now_ns = self._queue.now_ns
        return any(self._is_busy(other, now_ns) for other in self._gpu(stream).streams)

    def _is_busy(self, stream: ContendedStream, now_ns: int) -> bool:
        self._run_until(stream, now_ns)
        if stream.stopped_by is not None or not stream.queue:
            return False
        return max(stream.queue[0][1], stream.end_ns) < now_ns

    def _gpu(self, stream: Stream) -> Gpu:
        return self._gpus[stream.device]

    # -------------------------------------------------------------- streams

    def _new_stream(self, device: int, number: int) -> Stream:
        if device not in self._gpus:
            self._gpus[device] = Gpu(self._factor)
        return ContendedStream(device, number, self._gpus[device])

    def _issue(self, stream: Stream, item: tuple) -> None:
        assert isinstance(stream, ContendedStream)
        stream.queue.append(item)
        if stream.stopped_by is None and stream.check is None:
            self._get_on(stream)

    def _resume(self, stream: Stream) -> None:
        assert isinstance(stream, ContendedStream)
        stream.stopped_by = None
        self._get_on(stream)

    def _get_on(self, stream: ContendedStream) -> None:
        self._run_until(stream, self._queue.now_ns)
        self._expect(stream)

    def _run_until(self, stream: ContendedStream, now_ns: int) -> None:
        """Evaluate what is certain at `now_ns`: kernels that have ended, and what stands behind them."""
        queue, gpu = stream.queue, stream.gpu
        starts, ends = self.trace.start_ns, self.trace.end_ns
        while queue and stream.stopped_by is None:
            item = queue[0]
            if item[0] == OP:
                _, host_ns, row, duration_ns = item
                begin_ns = host_ns if host_ns > stream.end_ns else stream.end_ns
                end_ns = gpu.end_ns(begin_ns, duration_ns)
                if end_ns > now_ns:
                    return
                starts[row], ends[row] = begin_ns, end_ns
                stream.end_ns = end_ns
                queue.popleft()
            else:
                queue.popleft()
                self._evaluate(stream, item)

    def _expect(self, stream: ContendedStream) -> None:
        """Look again when the kernels before the next item that matters are done, as far as can be told now."""
        due_ns = self._due_ns(stream)
        if stream.check is not None:
            if stream.check[0] == due_ns:
                return
            self._queue.cancel(stream.check)
            stream.check = None
        if due_ns is not None:
            key = (self.rank, stream.device, stream.number)
            stream.check = self._queue.schedule(due_ns, STREAM, key, lambda _: self._look_again(stream))

    def _look_again(self, stream: ContendedStream) -> None:
        stream.check = None
        self._get_on(stream)

    def _due_ns(self, stream: ContendedStream) -> int | None:
        """When the kernels before the next item that matters are done; None: no such item, or the stream is stopped."""
        if stream.stopped_by is not None:
            return None
        due_ns, gpu = stream.end_ns, stream.gpu
        for item in stream.queue:
            if item[0] == OP:
                due_ns = gpu.end_ns(item[1] if item[1] > due_ns else due_ns, item[3])
            elif item[0] == WAIT and item[2].time_ns is not None:
                due_ns = max(due_ns, item[2].time_ns)
            else:
                return due_ns
        return None

    def close(self) -> None:
        """Evaluate the kernels that nothing stands behind."""
        for stream in self.streams.values():
            assert isinstance(stream, ContendedStream)
            if all(item[0] == OP for item in stream.queue):
                self._run_until(stream, _NEVER_NS)
