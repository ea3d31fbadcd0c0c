"""A recorded run as PyTorch's profiler would have written it: one Kineto JSON file per rank.

HolisticTraceAnalysis, TensorBoard's profiler page, chrome://tracing and `phantora import kineto` read it. Each piece of
device work has its operator and its launch on the host, joined by correlation numbers; waits of streams for events and
of the host are calls and `cuda_sync` events. Written event by event.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from phantora.exporters.chrome_json import EventFile, event_file, micros, text
from phantora.exporters.chrome_kineto_names import WAITS, collective_arguments, input_types, kernel_names, nccl_kernel
from phantora.exporters.perfetto_host import HostThread, host_threads
from phantora.exporters.perfetto_rank import chosen_ranks, tells_launches

from phantora.cluster.spec import Cluster
from phantora.trace.columns import finished_rows
from phantora.trace.model import HOST_DEVICE, CollectiveInfo, RankTrace, Run

_EPOCH_NS = 1_767_225_600_000_000_000  # virtual time 0 is 2026-01-01T00:00:00Z
_FIRST_PROCESS = 1000  # GPUs are processes 0, 1, ... in these files
_Keyed = tuple[tuple[int, int], str]  # (begin_ns, -end_ns), event


def write_kineto(
    run: Run, folder: Path | str, ranks: Sequence[int] | None = None, name: str = "rank_.json.gz"
) -> list[Path]:
    """Write FOLDER/rank_<rank>.json.gz and return the paths. UserError for an unknown rank.

    name: of the files; the rank's number is put before .json or .json.gz, and only the latter are compressed.
    """
    stem, dot, extension = name.rpartition(".json")
    assert dot and extension in ("", ".gz"), name
    folder, sequence = Path(folder), _sequence_numbers(run)
    digits = len(str(max(run.world_size - 1, 0)))
    paths = []
    for trace in chosen_ranks(run, ranks):
        path = folder / f"{stem}{trace.rank:0{digits}d}.json{extension}"
        with event_file(path, _head(run, trace)) as file:
            _RankWriter(run, trace, sequence, file).write()
        paths.append(path)
    return paths


def _head(run: Run, trace: RankTrace) -> dict[str, object]:
    """HolisticTraceAnalysis looks for '"rank": N' with that blank, which json.dumps writes."""
    head: dict[str, object] = {
        "schemaVersion": 1,
        "distributedInfo": {"backend": "nccl", "rank": trace.rank, "world_size": run.world_size},
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": _EPOCH_NS,
        "traceName": f"rank {trace.rank} of: {' '.join(run.command)}",
    }
    if isinstance(run.cluster, Cluster):
        gpu = run.cluster.gpu
        head["deviceProperties"] = [
            {
                "id": device, "name": gpu.name, "totalGlobalMem": gpu.visible_memory_bytes,
                "computeMajor": gpu.compute_capability[0], "computeMinor": gpu.compute_capability[1],
                "numSms": gpu.num_sms,
            }
            for device in sorted({*trace.device} - {HOST_DEVICE})
        ]  # fmt: skip
    return head


def _sequence_numbers(run: Run) -> list[int]:
    """The number of each collective among those of its group, or of its pair."""
    counts: dict[tuple[int, tuple[int, ...]], int] = {}
    numbers = []
    for info in run.collectives:
        key = (info.group, info.ranks if info.kind == "send_recv" else ())
        counts[key] = counts.get(key, 0) + 1
        numbers.append(counts[key])
    return numbers


class _RankWriter:
    """Correlation numbers: row + 1 for launches, then those of recorded events, of waits for them, and of the host's
    waits."""

    def __init__(self, run: Run, trace: RankTrace, sequence: list[int], file: EventFile) -> None:
        self.run, self.trace, self.sequence, self.file = run, trace, sequence, file
        self.process = _FIRST_PROCESS + trace.rank
        self.kernels = [kernel_names(signature) for signature in run.signatures]
        self.operators = [text(input_types(signature))[1:-1] for signature in run.signatures]
        self.details = [
            text({"op": s.name, "family": s.family, "flops": s.flops, "bytes": s.bytes, "price source": s.source})[1:-1]
            for s in run.signatures
        ]
        rows = len(trace.issue_ns)
        self.awaited = {row: rows + 1 + number for number, row in enumerate(sorted(set(trace.dependency)))}
        self.next_correlation = rows + 1 + len(self.awaited)
        self.waits_of: dict[int, list[int]] = {}
        for row, earlier in zip(trace.dependent, trace.dependency):
            self.waits_of.setdefault(row, []).append(earlier)

    def write(self) -> None:
        """Write the events."""
        self._metadata(self.process, f"python ({self.trace.rank})", "CPU", 0)
        for device in sorted({*self.trace.device} - {HOST_DEVICE}):
            self._metadata(device, f"python ({self.trace.rank})", f"GPU {device}", 5_000_000 + device)
        for device, stream in sorted({*zip(self.trace.device, self.trace.stream)}):
            if device != HOST_DEVICE:
                self.file.metadata("thread_name", device, stream, "name", f"stream {stream}")
        for thread in host_threads(self.trace, self.run.cluster, tells_launches([self.trace])):
            self._write_thread(thread)
        for row in finished_rows(self.trace).tolist():
            self.file.add_all(self._work(row))
        self.file.add_all(self._memory())

    def _metadata(self, pid: int, name: str, label: str, order: int) -> None:
        self.file.metadata("process_name", pid, 0, "name", name)
        self.file.metadata("process_labels", pid, 0, "labels", label)
        self.file.metadata("process_sort_index", pid, 0, "sort_index", order)

    # host

    def _write_thread(self, thread: HostThread) -> None:
        tid = self.process + thread.number
        self.file.metadata("thread_name", self.process, tid, "name", f"thread {tid} (python)")
        for number, lane in enumerate(thread.lanes):
            spans = self._spans(lane, tid)
            launches = self._launches(thread, tid) if number == 0 else iter(())
            self.file.add_all(event for _, event in heapq.merge(spans, launches, key=lambda entry: entry[0]))
        for time_ns, _, name, _ in thread.instants:
            where = f'"pid":{self.process},"tid":{tid},"ts":{micros(time_ns)}'
            self.file.add(f'{{"ph":"i","s":"t","cat":"user_annotation","name":{text(name)},{where}}}')

    def _spans(self, lane: list[tuple[int, int, str, str]], tid: int) -> Iterator[_Keyed]:
        for begin, end, name, category in lane:
            if category != "blocked":
                yield (begin, -end), self._span("user_annotation", name, tid, begin, end, "")
                continue
            call, kind = WAITS.get(name.removesuffix(" synchronize"), ("", ""))
            if not call:  # a wait that CUDA has no call for: a store, a collective of the CPU
                yield (begin, -end), self._span("cpu_op", name, tid, begin, end, "")
                continue
            correlation = self._new_correlation()
            event = self._span("cuda_runtime", call, tid, begin, end, f'"correlation":{correlation}')
            where = f'"pid":0,"tid":-1,"ts":{micros(begin)},"dur":{micros(end - begin)}'
            arguments = f'"cuda_sync_kind":"{kind}","stream":-1,"correlation":{correlation},"device":0,"context":1'
            yield (
                (begin, -end),
                f'{event},\n{{"ph":"X","cat":"cuda_sync","name":"{kind}",{where},"args":{{{arguments}}}}}',
            )

    def _launches(self, thread: HostThread, tid: int) -> Iterator[_Keyed]:
        """Operator, what its stream has to wait for, launch, arrow; and the event that others wait for."""
        launches = thread.launches
        for begin, end, row in zip(launches.begin_ns.tolist(), launches.end_ns.tolist(), launches.rows.tolist()):
            if self.trace.device[row] == HOST_DEVICE:
                continue
            number = self.trace.signature[row]
            if number >= 0:
                call, name, arguments = (
                    self.kernels[number][2],
                    self.run.signatures[number].name,
                    self.operators[number],
                )
            else:
                call, name, arguments = "cudaLaunchKernelExC", f"c10d::{self._infos(row)[0].kind}_", '"Input Dims":[]'
            events = [self._span("cpu_op", name, tid, begin, end, f'"External id":{row + 1},{arguments}')]
            events += [
                event for earlier in self.waits_of.get(row, ()) for event in self._stream_wait(row, earlier, tid, begin)
            ]
            launch = f'"External id":{row + 1},"correlation":{row + 1}'
            events.append(self._span("cuda_runtime", call, tid, begin, end, launch))
            if self.trace.end_ns[row] >= 0:
                where = f'"pid":{self.process},"tid":{tid},"ts":{micros(begin)}'
                events.append(f'{{"ph":"s","id":{row + 1},{where},"cat":"ac2g","name":"ac2g"}}')
            if row in self.awaited:
                record = f'"correlation":{self.awaited[row]}'
                events.append(self._span("cuda_runtime", "cudaEventRecord", tid, end, end, record))
            yield (begin, -end), ",\n".join(events)

    def _stream_wait(self, row: int, earlier: int, tid: int, time_ns: int) -> Iterator[str]:
        correlation, record = self._new_correlation(), self.awaited[earlier]
        device, stream = self.trace.device[row], self.trace.stream[row]
        yield self._span("cuda_runtime", "cudaStreamWaitEvent", tid, time_ns, time_ns, f'"correlation":{correlation}')
        arguments = {
            "cuda_sync_kind": "Stream Wait Event", "wait_on_stream": self.trace.stream[earlier],
            "wait_on_cuda_event_record_corr_id": record, "wait_on_cuda_event_id": record, "stream": stream,
            "correlation": correlation, "device": device, "context": 1,
        }  # fmt: skip
        where = f'"pid":{device},"tid":{stream},"ts":{micros(time_ns)},"dur":0.000'
        yield f'{{"ph":"X","cat":"cuda_sync","name":"Stream Wait Event",{where},"args":{text(arguments)}}}'

    def _span(self, category: str, name: str, tid: int, begin: int, end: int, arguments: str) -> str:
        where = f'"pid":{self.process},"tid":{tid},"ts":{micros(begin)},"dur":{micros(end - begin)}'
        return f'{{"ph":"X","cat":"{category}","name":{text(name)},{where},"args":{{{arguments}}}}}'

    def _new_correlation(self) -> int:
        self.next_correlation += 1
        return self.next_correlation

    # device work

    def _work(self, row: int) -> Iterator[str]:
        trace = self.trace
        device, stream, start, end = trace.device[row], trace.stream[row], trace.start_ns[row], trace.end_ns[row]
        number = trace.signature[row]
        if device == HOST_DEVICE:
            name = self.run.signatures[number].name if number >= 0 else self._infos(row)[0].kind
            yield self._span(
                "cpu_op", name, self.process + 900 + max(stream, 0), start, end, f'"External id":{row + 1}'
            )
            return
        where = f'"pid":{device},"tid":{stream},"ts":{micros(start)}'
        if number >= 0:
            category, name, _ = self.kernels[number]
            details = self.details[number]
        else:
            infos, parts = self._infos(row), trace.work_collectives[-1 - number]
            category, name = "kernel", nccl_kernel(infos[0])
            group = self.run.groups[infos[0].group].name if infos[0].group < len(self.run.groups) else ""
            details = text(collective_arguments(infos, trace.rank, group, self.sequence[parts[0]]))[1:-1]
        arguments = f'"External id":{row + 1},"device":{device},"context":1,"stream":{stream},"correlation":{row + 1}'
        body = f'"name":{text(name)},{where},"dur":{micros(end - start)},"args":{{{arguments},{details}}}'
        yield f'{{"ph":"X","cat":"{category}",{body}}}'
        if trace.issue_ns[row] >= 0:
            yield f'{{"ph":"f","id":{row + 1},{where},"cat":"ac2g","name":"ac2g","bp":"e"}}'

    def _infos(self, row: int) -> list[CollectiveInfo]:
        return [self.run.collectives[number] for number in self.trace.work_collectives[-1 - self.trace.signature[row]]]

    def _memory(self) -> Iterator[str]:
        trace, last = self.trace, dict[int, int]()
        columns = (trace.memory_ns, trace.memory_device, trace.allocated_bytes, trace.reserved_bytes)
        for time_ns, device, allocated, reserved in zip(*columns):
            changed, last[device] = allocated - last.get(device, 0), allocated
            arguments = {
                "Bytes": changed, "Device Type": 1, "Device Id": device, "Total Allocated": allocated,
                "Total Reserved": reserved,
            }  # fmt: skip
            where = f'"pid":{self.process},"tid":{self.process},"ts":{micros(time_ns)}'
            yield f'{{"ph":"i","s":"t","cat":"cpu_instant_event","name":"[memory]",{where},"args":{text(arguments)}}}'
