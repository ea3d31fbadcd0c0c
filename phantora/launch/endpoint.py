"""The Unix socket on which the ranks meet the engine, and the private directory that holds it."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile

from phantora.errors import UserError

_MAX_PATH_BYTES = 100  # unix(7): sun_path has 108, a terminating zero included


class Endpoint:
    """`path` is where ranks connect, `listener` where the engine accepts them; remove() when no rank will come any more."""

    def __init__(self, backlog: int) -> None:
        self._directory = _private_directory()
        self.path = os.path.join(self._directory, "engine")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(self.path)
        self.listener.listen(backlog)

    def remove(self) -> None:
        self.listener.close()
        remove_directory(self.path)


def remove_directory(path: str) -> None:
    """Of an endpoint; nothing happens when it is gone already."""
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)


def _private_directory() -> str:
    """In the folder for temporary files, or in a usual one when the path there is too long for a socket."""
    for parent in (_temporary_folder(), "/tmp", "/dev/shm"):
        if len(os.fsencode(parent)) <= _MAX_PATH_BYTES - len("/phantora-12345678/engine"):
            try:
                return tempfile.mkdtemp(prefix="phantora-", dir=parent)
            except OSError:
                continue
    raise UserError("no folder for temporary files is writable (TMPDIR, /tmp, /dev/shm)")


def _temporary_folder() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "/tmp"
