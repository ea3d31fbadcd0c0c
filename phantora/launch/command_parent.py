"""Runs the user's own launcher (torchrun, deepspeed, accelerate, a shell script): `record-and-simulate -- COMMAND...`.

The Python processes that it starts join the run by themselves (joining.py). This process stands between, so that whatever the
launcher leaves behind ends with the run; it reports how the launcher ended.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
from typing import Any

from phantora.launch import process_tree
from phantora.launch.attach import child_environment
from phantora.launch.endpoint import remove_directory
from phantora.launch.options import JobOptions
from phantora.launch.warm_parent import is_engine_there, options_of, read_line, report


def main() -> None:
    """`python -m phantora.launch.command_parent FD`: FD is the control socket; one JSON line says what to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command hears Ctrl-C, and says what is to end
    control = socket.socket(fileno=int(sys.argv[1]))
    request = read_line(control)
    process_tree.become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: _end_now(request["endpoint"]))
    process_tree.die_with_parent(signal.SIGTERM)
    options = options_of(request)
    try:
        process = _start(options, request)
    except OSError as error:
        text = f"cannot run {options.launch_command[0]}: {error.strerror}"
        report(control, {"error": text, "code": 2})
        return
    process_tree.outlive_parent()  # from here on the closed control socket says it
    _wait(control, process)
    process_tree.kill_descendants()
    if not is_engine_there(control):
        remove_directory(request["endpoint"])


def _start(options: JobOptions, request: dict[str, Any]) -> subprocess.Popen[bytes]:
    ends = {stream: fd for _, stream, fd in request["pipes"]}
    environment = {**os.environ, **child_environment(options, request["endpoint"])}
    process = subprocess.Popen(
        options.launch_command, stdin=subprocess.DEVNULL, stdout=ends["stdout"], stderr=ends["stderr"], env=environment,
        start_new_session=True,
    )  # fmt: skip
    for fd in ends.values():
        os.close(fd)
    return process


def _wait(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Until the launcher has ended and everything below it, or the engine wants an end."""
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    said = False
    while not selector.select(timeout=0.1):  # 'kill', or the engine is gone
        code = process.poll()
        if code is not None and not said:
            said = True
            report(control, {"command": code})
        _reap_orphans(process.pid)


def _reap_orphans(launcher: int) -> None:
    """Ranks whose parent ended before them: as zombies they would look alive to the engine."""
    for pid in process_tree.zombies_of(os.getpid()):
        if pid != launcher:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def _end_now(endpoint: str) -> None:
    process_tree.kill_descendants()
    remove_directory(endpoint)
    os._exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    main()
