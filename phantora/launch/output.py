"""The ranks' output: every rank's in its log files, that of shown ranks on the terminal as well."""

from __future__ import annotations

import codecs
import os
import re
import sys
import time
from collections.abc import Callable
from typing import TextIO

from phantora.launch.options import JobOptions

_HOLD_S = 0.1  # a line without its end is shown after this: a prompt, a progress bar
_HOLD_BYTES = 1 << 16  # or when it has got this long
_PIECE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class OutputPipes:
    """Pipes of the shown ranks. Lines go to the rank's log file and, prefixed when several ranks are shown, here."""

    def __init__(self, options: JobOptions, write: Callable[[str, TextIO], None]) -> None:
        """write(text, stream): puts text on the terminal (round a progress display, if there is one)."""
        self._options = options
        shown = sorted(options.shown_ranks())
        self._screen = Screen(write)
        self._pipes: list[Pipe] = []
        self.write_ends: dict[tuple[int, str], int] = {}
        self.readers: list[tuple[int, Callable[[], bool]]] = []
        for rank in shown:
            for stream in ("stdout", "stderr"):
                self._open(rank, stream, f"[rank {rank}] " if len(shown) > 1 else "")

    def _open(self, rank: int, stream: str, prefix: str) -> None:
        read_end, write_end = os.pipe()
        os.set_inheritable(write_end, True)
        self.write_ends[rank, stream] = write_end
        pipe = Pipe(read_end, str(self._options.rank_log(rank, stream)), stream, prefix, self._screen)
        self._pipes.append(pipe)
        self.readers.append((read_end, pipe.read))

    def show_held(self) -> None:
        """Show what has waited for the end of its line for long enough (call often)."""
        now = time.monotonic()
        for pipe in self._pipes:
            if pipe.held and now - pipe.held_since >= _HOLD_S:
                pipe.show()

    def close(self) -> None:
        """Show and close what is open, though somebody still holds its other end."""
        for pipe in self._pipes:
            pipe.close()

    @property
    def failures(self) -> list[str]:
        """Log files that could not be written to the end: 'cannot write FILE: reason'."""
        return [pipe.failure for pipe in self._pipes if pipe.failure]


class Pipe:
    """One stream of one rank. `held` is the beginning of a line, not shown yet."""

    def __init__(self, read_end: int, log_path: str, stream: str, prefix: str, screen: Screen) -> None:
        self._read_end, self._log_path = read_end, log_path
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stream, self._screen = stream, screen
        self.prefix = prefix
        self.held: list[bytes] = []
        self._held_bytes = 0
        self.held_since = 0.0
        self.failure = ""
        self._is_open = True

    def read(self) -> bool:
        """Take what is there; False at the end."""
        data = os.read(self._read_end, 1 << 16)
        if not data:
            self.close()
            return False
        self._write_log(data)
        if not self.held:
            self.held_since = time.monotonic()
        self.held.append(data)
        self._held_bytes += len(data)
        if b"\n" in data or self._held_bytes >= _HOLD_BYTES:
            self.show(up_to_line=True)
        return True

    def show(self, up_to_line: bool = False, final: bool = False) -> None:
        """Put what is held on the terminal; up_to_line: keep the beginning of a line, unless it is long."""
        data, self.held = b"".join(self.held), []
        if up_to_line:
            data, newline, rest = data.rpartition(b"\n")
            data += newline
            if rest and len(rest) < _HOLD_BYTES:
                self.held, self.held_since = [rest], time.monotonic()
            else:
                data += rest
        self._held_bytes = sum(map(len, self.held))
        text = self._decoder.decode(data, final)
        if text:
            self._screen.put(text, self, sys.stdout if self._stream == "stdout" else sys.stderr)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.show(final=True)
            os.close(self._log)
            os.close(self._read_end)

    def _write_log(self, data: bytes) -> None:
        while data and not self.failure:
            try:
                data = data[os.write(self._log, data) :]
            except OSError as error:
                self.failure = f"cannot write {self._log_path}: {error.strerror}"


class Screen:
    """Where the pipes' texts meet: every line begins with the prefix of the rank that wrote it."""

    def __init__(self, write: Callable[[str, TextIO], None]) -> None:
        self._write = write
        self._last: dict[str, tuple[Pipe, str]] = {}  # device -> who wrote there last, and the last character

    def put(self, text: str, pipe: Pipe, stream: TextIO) -> None:
        if not pipe.prefix:
            self._write(text, stream)
            return
        device = "terminal" if stream.isatty() else str(id(stream))
        owner, last = self._last.get(device, (pipe, "\n"))
        if owner is not pipe:
            parts = [] if last == "\n" else ["\n"]  # the other's line stays as it is
            last = "\n"
        else:
            parts = []
        for piece in _PIECE.findall(text):
            is_rest_of_end = piece == "\n" and last == "\r"
            if last in "\r\n" and not is_rest_of_end:
                parts.append(pipe.prefix)
            parts.append(piece)
            last = piece[-1]
        self._last[device] = (pipe, last)
        self._write("".join(parts), stream)
