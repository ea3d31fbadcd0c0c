"""A recorded run as one JSON file for chrome://tracing, the Perfetto user interface and other viewers of Chrome's
format.

As trace.pftrace: one process per rank, a thread for each host thread and each stream, counters, arrows. Written event
by event.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from phantora.exporters.chrome_json import EventFile, event_file, micros, text
from phantora.exporters.lanes import disjoint_lanes
from phantora.exporters.perfetto_host import Launches, host_threads
from phantora.exporters.perfetto_rank import Columns, chosen_ranks, rank_title, stream_title, tells_launches
from phantora.exporters.perfetto_tables import communication_name, rate_text, shapes_text, short_name

from phantora.trace.busbw import busbw_bytes_per_s
from phantora.trace.columns import as_int64
from phantora.trace.counters import CounterSeries
from phantora.trace.model import RankTrace, Run

_SHOWN_RANKS = 16
_FIRST_STREAM = 1000  # thread ids: host threads from 0, streams from here


def write_chrome(
    run: Run, path: Path | str, ranks: Sequence[int] | None = None, *, launches: bool = True,
    counters: Sequence[CounterSeries] = (),
) -> Path:  # fmt: skip
    """Write the file `path` (compressed if its name ends in .gz) and return it; arguments as write_perfetto's."""
    path = Path(path)
    head = {"displayTimeUnit": "ns", "otherData": {"command": run.command, "source": "phantora"}}
    with event_file(path, head) as file:
        chosen = chosen_ranks(run, ranks)
        writer = _ChromeWriter(run, file, launches and tells_launches(chosen), _arrows(chosen))
        for trace in chosen:
            writer.write(trace, [series for series in counters if series.rank == trace.rank])
    return path


class _ChromeWriter:
    def __init__(self, run: Run, file: EventFile, launches: bool, arrows: dict[int, tuple[int, int]]) -> None:
        self.run, self.file, self.launches, self.arrows = run, file, launches, arrows
        self.first_flow = len(run.collectives) + 1  # number of the arrow to the first row of the present rank
        self.kernels = [_kernel_parts(run, number) for number in range(len(run.signatures))]
        self.communications: dict[tuple[int, ...], str] = {}

    def write(self, trace: RankTrace, counters: Sequence[CounterSeries]) -> None:
        """One rank."""
        pid = trace.rank
        self.file.metadata("process_name", pid, 0, "name", rank_title(self.run, trace.rank))
        self.file.metadata("process_sort_index", pid, 0, "sort_index", trace.rank)
        self._write_host(trace)
        self._write_streams(trace)
        self.file.add_all(self._memory(trace))
        self.first_flow += len(trace.issue_ns)
        for series in counters:
            for time_ns, value in zip(series.times_ns.tolist(), series.values.tolist()):
                self.file.add(_counter(pid, series.name, time_ns, f'{{"{series.unit}":{value:.3f}}}'))

    # host

    def _write_host(self, trace: RankTrace) -> None:
        tid = 0
        for thread in host_threads(trace, self.run.cluster, self.launches):
            name = "host" if thread.number == 0 else f"host thread {thread.number}"
            for number, lane in enumerate(thread.lanes):
                self._name_thread(trace.rank, tid, name if number == 0 else f"{name} (overlapping)")
                spans = (
                    ((begin, -end), _span(trace.rank, tid, begin, end, name, category))
                    for begin, end, name, category in lane
                )
                launched = self._launches(trace, thread.launches, tid) if number == 0 else ()
                # What begins together stands with the outer one first: viewers nest slices in this order.
                self.file.add_all(event for _, event in heapq.merge(spans, launched, key=lambda entry: entry[0]))
                if number == 0:
                    self.file.add_all(
                        _instant(trace.rank, tid, time_ns, name) for time_ns, _, name, _ in thread.instants
                    )
                tid += 1

    def _launches(self, trace: RankTrace, launches: Launches, tid: int) -> Iterator[tuple[tuple[int, int], str]]:
        for begin, end, row in zip(launches.begin_ns.tolist(), launches.end_ns.tolist(), launches.rows.tolist()):
            where = f'"pid":{trace.rank},"tid":{tid},"ts":{micros(begin)}'
            event = f'{{"ph":"X","cat":"launch","name":{self._name(trace, row)},{where},"dur":{micros(end - begin)}}}'
            if trace.end_ns[row] >= 0:
                event += f',\n{{"ph":"s","cat":"launch","name":"launch","id":{self.first_flow + row},{where}}}'
            yield (begin, -end), event

    def _name(self, trace: RankTrace, row: int) -> str:
        signature = trace.signature[row]
        if signature >= 0:
            return self.kernels[signature][0]
        return text(communication_name(self.run, trace.rank, trace.work_collectives[-1 - signature]))

    # device work

    def _write_streams(self, trace: RankTrace) -> None:
        columns = Columns.of(trace)
        tid = _FIRST_STREAM
        for device, stream, communication, index in columns.tracks():
            shown = device if columns.several_devices or device < 0 else None
            title = stream_title(trace, shown, stream, communication)
            lanes = disjoint_lanes(columns.start_ns[index], columns.end_ns[index])
            for lane in range(int(lanes.max()) + 1):
                self._name_thread(trace.rank, tid, title if lane == 0 else f"{title} (overlap {lane})")
                for row in index[lanes == lane].tolist():
                    self.file.add_all(self._work(trace, row, tid, communication))
                tid += 1

    def _work(self, trace: RankTrace, row: int, tid: int, communication: bool) -> Iterator[str]:
        """A slice and what arrows meet it: from its launch, and for a collective through its members."""
        start, end = trace.start_ns[row], trace.end_ns[row]
        where = f'"pid":{trace.rank},"tid":{tid},"ts":{micros(start)}'
        queued = max(start - trace.issue_ns[row], 0) if trace.issue_ns[row] >= 0 else 0
        parts = trace.work_collectives[-1 - trace.signature[row]] if communication else ()
        if communication:
            category, arguments = '"communication"', self._communication(parts)
        else:
            _, category, arguments = self.kernels[trace.signature[row]]
        head = f'{{"ph":"X","cat":{category},"name":{self._name(trace, row)},{where},"dur":{micros(end - start)}'
        yield f'{head},"args":{{{arguments},"queued_ns":{queued}}}}}'
        if self.launches and trace.issue_ns[row] >= 0:
            yield f'{{"ph":"f","bp":"e","cat":"launch","name":"launch","id":{self.first_flow + row},{where}}}'
        for collective in parts[:1]:
            first, last = self.arrows[collective]
            if first != last:
                phase = "s" if trace.rank == first else "f" if trace.rank == last else "t"
                arrow = f'"cat":"collective","name":"collective","id":{collective + 1}'
                yield f'{{"ph":"{phase}","bp":"e",{arrow},{where}}}'

    def _communication(self, parts: tuple[int, ...]) -> str:
        """Arguments, without braces."""
        known = self.communications.get(parts)
        if known is None:
            infos = [self.run.collectives[number] for number in parts]
            first = infos[0]
            busbw = busbw_bytes_per_s(first.kind, len(first.ranks), first.bytes, first.end_ns - first.start_ns) / 1e9
            values = {
                "kind": first.kind, "bytes": sum(info.bytes for info in infos), "dtype": first.dtype,
                "ranks": _ranks_text(first.ranks), "algorithm": first.algorithm, "busbw_gb_per_s": round(busbw, 3),
                "num_coalesced": len(infos), "stack": first.stack,
            }  # fmt: skip
            known = self.communications[parts] = text(values)[1:-1]
        return known

    def _memory(self, trace: RankTrace) -> Iterator[str]:
        columns = (trace.memory_ns, trace.memory_device, trace.allocated_bytes, trace.reserved_bytes)
        for time_ns, device, allocated, reserved in zip(*(as_int64(column).tolist() for column in columns)):
            name = f"memory (device {device})" if device else "memory"
            yield _counter(trace.rank, name, time_ns, f'{{"allocated":{allocated},"cached":{reserved - allocated}}}')

    def _name_thread(self, pid: int, tid: int, title: str) -> None:
        self.file.metadata("thread_name", pid, tid, "name", title)
        self.file.metadata("thread_sort_index", pid, tid, "sort_index", tid)


def _ranks_text(ranks: tuple[int, ...]) -> str:
    """'4: 0, 1, 2, 3'; of many the first."""
    more = ", ..." if len(ranks) > _SHOWN_RANKS else ""
    return f"{len(ranks)}: {', '.join(map(str, ranks[:_SHOWN_RANKS]))}{more}"


def _arrows(ranks: Sequence[RankTrace]) -> dict[int, tuple[int, int]]:
    """Collective -> rank that came first and rank that came last (of those at one time: in order of ranks)."""
    first: dict[int, tuple[int, int]] = {}
    last: dict[int, tuple[int, int]] = {}
    for trace in ranks:
        signature, start = as_int64(trace.signature), as_int64(trace.start_ns)
        for row in np.flatnonzero((signature < 0) & (start >= 0) & (as_int64(trace.end_ns) >= 0)).tolist():
            for collective in trace.work_collectives[-1 - int(signature[row])]:
                here = (int(start[row]), trace.rank)
                first[collective] = min(first.get(collective, here), here)
                last[collective] = max(last.get(collective, here), here)
    return {collective: (first[collective][1], last[collective][1]) for collective in first}


def _kernel_parts(run: Run, number: int) -> tuple[str, str, str]:
    """Name, category and arguments (without braces) of a signature, as JSON."""
    signature = run.signatures[number]
    arguments = {
        "op": signature.name, "shapes": shapes_text(signature), "bytes": signature.bytes, "flops": signature.flops,
        "rate": rate_text(signature), "num_kernels": signature.num_kernels, "price_source": signature.source,
    }  # fmt: skip
    return text(short_name(signature.name)), text(signature.family or "other"), text(arguments)[1:-1]


def _span(pid: int, tid: int, begin_ns: int, end_ns: int, name: str, category: str) -> str:
    where = f'"pid":{pid},"tid":{tid},"ts":{micros(begin_ns)},"dur":{micros(end_ns - begin_ns)}'
    return f'{{"ph":"X","cat":"{category}","name":{text(name)},{where}}}'


def _instant(pid: int, tid: int, time_ns: int, name: str) -> str:
    return f'{{"ph":"i","s":"t","cat":"range","name":{text(name)},"pid":{pid},"tid":{tid},"ts":{micros(time_ns)}}}'


def _counter(pid: int, name: str, time_ns: int, values: str) -> str:
    return f'{{"ph":"C","name":{text(name)},"pid":{pid},"tid":0,"ts":{micros(time_ns)},"args":{values}}}'
