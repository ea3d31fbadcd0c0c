"""The ranks' output: every rank's in its log files, that of shown ranks on the terminal as well."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TextIO

from phantora.launch.options import JobOptions


class OutputPipes:
    """Pipes of the shown ranks. A line is written to the rank's log file and, prefixed when several ranks are shown, here."""

    def __init__(self, options: JobOptions, write: Callable[[str, TextIO], None]) -> None:
        """write(text, stream): puts text on the terminal (round a progress display, if there is one)."""
        self._options, self._write = options, write
        self._shown = sorted(options.shown_ranks())
        self._partial: dict[int, bytes] = {}
        self.write_ends: dict[tuple[int, str], int] = {}
        self.readers: list[tuple[int, Callable[[], bool]]] = []
        for rank in range(options.world_size):
            options.rank_log(rank, "stdout").parent.mkdir(parents=True, exist_ok=True)
        for rank in self._shown:
            for stream in ("stdout", "stderr"):
                self._open(rank, stream)

    def _open(self, rank: int, stream: str) -> None:
        read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        log = open(self._options.rank_log(rank, stream), "wb", buffering=0)
        target = sys.stdout if stream == "stdout" else sys.stderr
        prefix = f"[rank {rank}] " if len(self._shown) > 1 else ""
        self.write_ends[rank, stream] = write_end

        def reader() -> bool:
            data = os.read(read_end, 1 << 16)
            if not data:
                self._put(self._partial.pop(read_end, b""), prefix, target)
                log.close()
                os.close(read_end)
                return False
            log.write(data)
            lines = self._partial.pop(read_end, b"") + data
            whole, newline, rest = lines.rpartition(b"\n")
            if rest:
                self._partial[read_end] = rest
            self._put(whole + newline, prefix, target)
            return True

        self.readers.append((read_end, reader))

    def _put(self, data: bytes, prefix: str, target: TextIO) -> None:
        if data:
            text = data.decode("utf-8", "replace")
            self._write("".join(prefix + line for line in text.splitlines(keepends=True)) if prefix else text, target)
