"""The engine's handle on the processes of a job: starts the warm parent, hears of the ranks' ends, ends them all."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from phantora.launch.options import JobOptions


class Launcher:
    """Owns the warm parent process. `control` is a socket on which it reports JSON lines."""

    def __init__(self, options: JobOptions, endpoint: str, pipes: dict[tuple[int, str], int]) -> None:
        """pipes: (rank, 'stdout' | 'stderr') -> write end of a pipe whose other end the caller reads."""
        self.control, theirs = socket.socketpair()
        fds = [theirs.fileno(), *pipes.values()]
        command = [sys.executable, "-m", "phantora.launch.warm_parent", str(theirs.fileno())]
        # Its own session: the terminal's Ctrl-C reaches this process only, which ends the others in order.
        self.process = subprocess.Popen(command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True)
        theirs.close()
        for fd in pipes.values():
            os.close(fd)
        request = {
            "options": json.loads(options.to_json()),
            "endpoint": endpoint,
            "pipes": [[rank, stream, fd] for (rank, stream), fd in sorted(pipes.items())],
        }
        self.control.sendall(json.dumps(request).encode() + b"\n")
        self._buffer = b""

    def reports(self) -> list[dict[str, Any]] | None:
        """What the parent has said since (called when `control` is readable); None when it is gone."""
        try:
            data = self.control.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """End every process of the job. Returns when the warm parent is gone."""
        try:
            self.control.sendall(b"kill\n")
        except OSError:
            pass
        deadline = time.monotonic() + 3.0
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self) -> None:
        """After a run that ended well: let the parent end by itself."""
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
