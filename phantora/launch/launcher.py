"""The engine's handle on the processes of a job: starts the warm parent, hears of the ranks' ends, ends them all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

from phantora.engine.server import signal_name
from phantora.launch import process_tree
from phantora.launch.options import JobOptions

_COMMAND_S = 60.0  # the user's own launcher may take this long to end after its last rank
_KILL_S = 3.0  # the warm parent may take this long to end the ranks


class Launcher:
    """Owns the warm parent process. `control` is a socket on which it reports JSON lines."""

    def __init__(self, options: JobOptions, endpoint: str, pipes: dict[tuple[int, str], int]) -> None:
        """pipes: (rank, 'stdout' | 'stderr') -> write end of a pipe whose other end the caller reads."""
        self._not_ours = process_tree.children_of(os.getpid())  # `something & exec phantora ...`
        process_tree.become_subreaper()
        self.control, theirs = socket.socketpair()
        fds = [theirs.fileno(), *pipes.values()]
        parent = "command_parent" if options.launch_command else "warm_parent"
        command = [sys.executable, "-m", f"phantora.launch.{parent}", str(theirs.fileno())]
        # Its own session: the terminal's Ctrl-C reaches this process only, which ends the others in order.
        self.process = subprocess.Popen(
            command, pass_fds=fds, stdin=subprocess.DEVNULL, start_new_session=True, env=_environment()
        )
        theirs.close()
        for fd in pipes.values():
            os.close(fd)
        request = {
            "options": json.loads(options.to_json()),
            "endpoint": endpoint,
            "pipes": [[rank, stream, fd] for (rank, stream), fd in sorted(pipes.items())],
        }
        try:
            self.control.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            pass  # it is gone already, which reports() tells
        self._buffer = b""
        self.is_command = bool(options.launch_command)
        self.command_code: int | None = None  # how the user's own launcher ended

    def reports(self) -> list[dict[str, Any]] | None:
        """What the parent has said since (called when `control` is readable); None when it is gone."""
        try:
            data = self.control.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        reports = [json.loads(line) for line in lines]
        for report in reports:
            self.command_code = report.get("command", self.command_code)
        return reports

    def how_it_ended(self) -> str:
        """Of the warm parent, for a message: '' or ' (killed by SIGKILL)'."""
        try:
            code = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return ""
        return f" (killed by {signal_name(-code)})" if code < 0 else f" (exit code {code})"

    def kill(self) -> None:
        """End every process of the job, and what they left behind. Returns when they are gone."""
        try:
            self.control.settimeout(0.5)
            self.control.sendall(b"kill\n")
        except OSError:
            pass
        if self.process.poll() is None:
            self.process.terminate()
        deadline = time.monotonic() + _KILL_S
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.kill_now()

    def kill_now(self) -> None:
        """Without asking first."""
        if self.process.poll() is None:
            process_tree.kill(self.process.pid)
        self.process.wait()
        process_tree.kill_descendants(self._not_ours)

    def wait(self) -> int:
        """After a run that ended well: let the parent end by itself. The exit code of the user's own launcher, 0 without one."""
        try:
            self._await_command() if self.is_command else self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        code = self.command_code or 0
        return code if code >= 0 else 128 - code

    def _await_command(self) -> None:
        """Launchers look for the ends of their ranks now and then."""
        deadline = time.monotonic() + _COMMAND_S
        self.control.settimeout(0.2)
        while self.command_code is None and time.monotonic() < deadline:
            try:
                if self.reports() is None:
                    return
            except TimeoutError:
                pass


def _environment() -> dict[str, str]:
    """Of all processes of the job. Strings hash alike in every run, so that the order of a set of names does not change."""
    return {"PYTHONHASHSEED": "0", **os.environ}
