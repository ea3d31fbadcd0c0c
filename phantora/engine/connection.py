"""The engine's end of one rank's socket."""

from __future__ import annotations

import select
import socket
from typing import Any

import msgpack

from phantora.engine.protocol import HEADER, Frame
from phantora.errors import SimulationError

_SEND_S = 20.0  # a rank that does not take its answer for this long is not going to


class Connection:
    """Bytes of one rank's socket, cut into frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(_SEND_S)
        self.rank: int | None = None
        self.pid = 0
        self._buffer = bytearray()

    def receive(self) -> bool:
        """Read what is there; False at the end of the stream."""
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def frames(self) -> list[tuple[int, bytes]]:
        """The frames that are complete."""
        found, position, size = [], 0, len(self._buffer)
        while size - position >= HEADER.size:
            length, frame = HEADER.unpack_from(self._buffer, position)
            end = position + HEADER.size + length - 1
            if end > size:
                break
            found.append((frame, bytes(self._buffer[position + HEADER.size : end])))
            position = end
        del self._buffer[:position]
        return found

    def send(self, frame: Frame, payload: dict[str, Any]) -> None:
        data = msgpack.packb(payload)
        try:
            self.sock.sendall(HEADER.pack(len(data) + 1, frame) + data)
        except TimeoutError:
            raise SimulationError(f"rank {self.rank} has not taken an answer for {_SEND_S:g} s: is it stopped?") from None
        except OSError:
            pass  # the rank is gone; its end is reported by the launcher

    def send_if_it_fits(self, frame: Frame, payload: dict[str, Any]) -> None:
        """Without waiting for the rank."""
        data = msgpack.packb(payload)
        try:
            self.sock.send(HEADER.pack(len(data) + 1, frame) + data, socket.MSG_DONTWAIT)
        except OSError:
            pass

    def is_readable(self) -> bool:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))
