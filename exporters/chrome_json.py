"""JSON files of trace events, written event by event (Chrome's trace event format, which PyTorch's profiler writes
too).

Source of the format: "Trace Event Format", Google, section "JSON Object Format". Times are microseconds; ours have
three decimals, so nothing is lost. A file whose name ends in .gz is compressed, with no time in it: equal runs give
equal bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

_FLUSH_EVENTS = 4096


def micros(time_ns: int) -> str:
    """1234567 ns as '1234.567'."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def text(value: object) -> str:
    """A value as JSON."""
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def event_file(path: Path, head: dict[str, Any]) -> Iterator[EventFile]:
    """The file `path`, with `head` before its events. It gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with _events(partial, path.name.endswith(".gz"), head) as file:
            yield file
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def _events(path: Path, is_packed: bool, head: dict[str, Any]) -> Iterator[EventFile]:
    with path.open("wb", buffering=1 << 20) as raw:
        packed = gzip.GzipFile("", "wb", compresslevel=4, fileobj=raw, mtime=0) if is_packed else raw
        out = io.TextIOWrapper(packed, encoding="utf-8", write_through=False, newline="\n")  # type: ignore[arg-type]
        for key, value in head.items():
            out.write(f"{'{' if key == next(iter(head)) else ''}\n{text(key)}: {text(value)},")
        out.write('\n"traceEvents": [\n')
        file = EventFile(out)
        yield file
        file.close()
        out.write("\n]}\n")
        out.detach()  # flushes, and leaves the file below open
        if packed is not raw:
            packed.close()


class EventFile:
    """Events go out in blocks."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._waiting: list[str] = []
        self._is_first = True

    def add(self, event: str) -> None:
        """One event: a JSON object."""
        self._waiting.append(event)
        if len(self._waiting) >= _FLUSH_EVENTS:
            self._flush()

    def add_all(self, events: Iterable[str]) -> None:
        """Several events."""
        for event in events:
            self.add(event)

    def metadata(self, kind: str, pid: int, tid: int, name: str, value: object) -> None:
        """kind: process_name, thread_sort_index, ...; name: of the argument that holds `value`."""
        self.add(f'{{"ph":"M","name":"{kind}","pid":{pid},"tid":{tid},"ts":0,"args":{{"{name}":{text(value)}}}}}')

    def close(self) -> None:
        """Write what waits."""
        self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._out.write(("" if self._is_first else ",\n") + ",\n".join(self._waiting))
            self._is_first = False
            self._waiting.clear()
