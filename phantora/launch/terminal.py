"""Writing to a terminal, pipe or file that may be closed or full: the run goes on without it.

`phantora ... | head -1` closes the pipe, `> /dev/full` is full, `>&-` was never open. The first failure is said on stderr; from
then on the stream is /dev/null, for Python's own flush at exit too.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


def open_standard_streams() -> None:
    """Give descriptors 0 to 2 that are closed to /dev/null, before another file takes their numbers."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
        if getattr(sys, name) is None:
            stream = open(fd, "r" if fd == 0 else "w", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def write(text: str, stream: TextIO) -> None:
    """All of `text`, now."""
    with surviving(stream):
        fd = _descriptor(stream)
        if fd is None:
            stream.write(text)
            stream.flush()
            return
        stream.flush()
        data = text.encode(stream.encoding or "utf-8", "backslashreplace")
        while data:
            try:
                data = data[os.write(fd, data) :]
            except BlockingIOError:  # another program of this terminal set it to non-blocking
                select.select([], [fd], [])


def say(text: str) -> None:
    """One message of the command itself."""
    write(text + "\n", sys.stderr)


@contextmanager
def surviving(stream: TextIO) -> Iterator[None]:
    """What happens inside may write to `stream`, and fail to."""
    try:
        yield
        stream.flush()
    except (OSError, ValueError, SystemExit) as error:  # SystemExit: what rich makes of a broken pipe
        if isinstance(error, ValueError) and not stream.closed:
            raise
        _give_up(stream, error)


def _give_up(stream: TextIO, error: BaseException) -> None:
    reason = (error.strerror if isinstance(error, OSError) else None) or "closed"
    name = "stderr" if stream in (sys.stderr, sys.__stderr__) else "stdout"
    fd = 2 if name == "stderr" else 1
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, fd)
    os.close(nothing)
    if stream.closed:
        setattr(sys, name, open(fd, "w", closefd=False))
    if name == "stdout":
        say(f"phantora: stdout cannot be written ({reason}): the run goes on, the logs have everything")


def _descriptor(stream: TextIO) -> int | None:
    """None: not a file (a test's or a notebook's)."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None
