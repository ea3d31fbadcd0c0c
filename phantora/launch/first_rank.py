"""Before the engine can be made of a job whose launcher is the user's own: waiting for the first rank to say how many there are."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgpack

from phantora.engine.protocol import HEADER, Frame
from phantora.engine.server import Failure

_POLL_S = 0.1
Reader = tuple[int, Callable[[], bool]]


@dataclass(slots=True)
class FirstRank:
    """What was found. connections: accepted sockets, nothing of which is read; readers: output pipes that are still open."""

    world_size: int
    local_size: int
    connections: list[socket.socket] = field(default_factory=list)
    readers: list[Reader] = field(default_factory=list)


def wait_for_first_rank(
    listener: socket.socket, launcher: Any, command: str, readers: list[Reader], tick: Callable[[], None]
) -> FirstRank:
    """Blocks until a process joins. Failure when the launcher ends before, tick() is called often."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(launcher.control, selectors.EVENT_READ)
    readers = list(readers)
    for reader in readers:
        selector.register(reader[0], selectors.EVENT_READ, reader)
    accepted: list[socket.socket] = []
    try:
        while True:
            for key, _ in selector.select(_POLL_S):
                if key.fileobj is listener:
                    accepted.append(listener.accept()[0])
                elif key.fileobj is launcher.control:
                    _check_launcher(launcher.reports(), command)
                elif not key.data[1]():
                    selector.unregister(key.data[0])
                    readers.remove(key.data)
            for connection in accepted:
                hello = _peek_hello(connection)
                if hello is not None:
                    return FirstRank(hello["world_size"], hello["local_size"], accepted, readers)
            tick()
    finally:
        selector.close()


def _check_launcher(reports: list[dict[str, Any]] | None, command: str) -> None:
    for report in reports or [{"error": "the process that runs the launcher ended unexpectedly"}]:
        if "error" in report:
            raise Failure(report["error"], report.get("code", 1))
        if "command" in report:
            code = report["command"]
            how = f"with exit code {code}" if code >= 0 else f"by signal {-code}"
            raise Failure(
                f"{command} ended {how} before any process joined the run: no Python process below it used a GPU through torch",
                (code if code > 0 else 128 - code) if code else 1,
            )


def _peek_hello(connection: socket.socket) -> dict[str, Any] | None:
    """The fields of the HELLO that begins the connection, if it is there and is one; it stays unread."""
    try:
        data = connection.recv(4096, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, ConnectionResetError):
        return None
    if len(data) < HEADER.size:
        return None
    length, frame = HEADER.unpack_from(data)
    if frame != Frame.HELLO or len(data) < HEADER.size + length - 1:
        return None
    return msgpack.unpackb(data[HEADER.size : HEADER.size + length - 1])
