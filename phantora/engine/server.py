"""The engine's process: sockets of the ranks, their output, their ends; feeds `Simulation` and delivers its replies.

One thread, one selector. Real time appears here only: to notice that nothing moves any more, and to draw the progress.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

import msgpack

from phantora.engine.protocol import HEADER, Frame
from phantora.engine.simulation import Simulation, State
from phantora.engine.watchdog import Watchdog
from phantora.errors import SimulationError

# After the first rank has failed, others that fail for the same reason are waited for this long (real time).
_GRACE_S = 0.3


class Connection:
    """Bytes of one rank's socket, cut into frames."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
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
        except OSError:
            pass  # the rank is gone; its end is reported by the launcher


class Failure(Exception):
    """A rank ended badly. code: the exit code that the whole run gets; rank: which one, if it was one."""

    def __init__(self, message: str, code: int, rank: int | None = None) -> None:
        super().__init__(message)
        self.code, self.rank = code, rank


class Server:
    """Runs one job.

    exits(): file descriptor and reader of the launcher's reports; each is {"rank", "status"} (a wait status) or
    {"error"} when the ranks could not be started.
    """

    def __init__(self, listener: socket.socket, launcher: Any, make_simulation: Callable[..., Simulation], world_size: int) -> None:
        self.simulation = make_simulation(self._reply)
        self.world_size = world_size
        self._launcher = launcher
        self._connections: dict[int, Connection] = {}
        self._statuses: dict[int, int] = {}
        self._failed: list[int] = []
        self._failed_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(launcher.control, selectors.EVENT_READ, self._launcher_spoke)
        self._watchdog = Watchdog()
        self.warnings: list[str] = []
        self._gone: set[int] = set()

    def watch(self, fd: int, reader: Callable[[], bool]) -> None:
        """Also call `reader()` when `fd` is readable, until it returns False."""
        self._selector.register(fd, selectors.EVENT_READ, (fd, reader))

    def run(self, tick: Callable[[], None]) -> None:
        """Until every rank has ended. tick() is called often. Failure or SimulationError when the run cannot go on."""
        while not self.simulation.all_finished:
            ready = self._selector.select(timeout=0.2)
            spoke = False
            for key, _ in ready:
                spoke |= self._handle(key)
            if spoke:
                self._watchdog.spoke()
                if not self._failed:  # what the others then wait for in vain is a consequence
                    self.simulation.advance()
            elif not ready and not self._failed:
                self._nothing_moves()
            if self._failed and time.monotonic() - self._failed_at > _GRACE_S:
                self._fail()
            tick()
        self._drain_output()
        if self._failed:
            self._fail()
        self.simulation.finish()

    def drain(self) -> None:
        """Take in what the ranks have sent, without waiting (after an interrupt: nothing recorded is lost)."""
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline:
            ready = self._selector.select(timeout=0.05)
            if not ready:
                return
            for key, _ in ready:
                try:
                    self._handle(key)
                except Exception:
                    pass  # after the fault that ended the run, what follows from it is not news

    def abort(self, reason: str) -> None:
        """Tell every rank that the run is over, and end their processes."""
        for connection in self._connections.values():
            connection.sock.settimeout(0.2)
            connection.send(Frame.ABORT, {"reason": reason})
        self._launcher.kill()

    # -------------------------------------------------------------- input

    def _handle(self, key: selectors.SelectorKey) -> bool:
        """One readable descriptor; whether a rank or the launcher spoke."""
        if isinstance(key.data, Connection):
            self._rank_spoke(key.data)
            return True
        if isinstance(key.data, tuple):
            fd, reader = key.data
            if not reader():
                self._selector.unregister(fd)
            return False
        key.data()
        return True

    def _accept(self) -> None:
        listener = next(key.fileobj for key in self._selector.get_map().values() if key.data == self._accept)
        sock, _ = listener.accept()  # type: ignore[union-attr]
        self._selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def _rank_spoke(self, connection: Connection) -> None:
        open_still = connection.receive()
        for frame, payload in connection.frames():
            self._dispatch(connection, frame, payload)
        if not open_still:
            self._selector.unregister(connection.sock)
            if connection.rank is not None:
                self._gone.add(connection.rank)
                self._maybe_ended(connection.rank)

    def _dispatch(self, connection: Connection, frame: int, payload: bytes) -> None:
        simulation, rank = self.simulation, connection.rank
        if frame == Frame.HELLO:
            fields = msgpack.unpackb(payload)
            connection.rank, connection.pid = fields["rank"], fields["pid"]
            self._connections[fields["rank"]] = connection
            simulation.hello(fields["rank"])
            return
        assert rank is not None, "the first frame of a connection is HELLO"
        if frame == Frame.RECORDS:
            simulation.records(rank, payload)
            return
        fields = msgpack.unpackb(payload, strict_map_key=False)
        handlers: dict[int, Callable[[int, dict[str, Any]], None]] = {
            Frame.SIGNATURE: simulation.signature,
            Frame.COLLECTIVE: simulation.collective,
            Frame.STACK: simulation.stack,
            Frame.STRING: simulation.string,
            Frame.CALL: simulation.call,
            Frame.NOTE: simulation.note,
        }
        handlers[frame](rank, fields)

    def _reply(self, rank: int, message: dict[str, Any]) -> None:
        self._connections[rank].send(Frame.REPLY, message)

    # -------------------------------------------------------------- ends

    def _launcher_spoke(self) -> None:
        reports = self._launcher.reports()
        if reports is None:
            self._selector.unregister(self._launcher.control)
            if not all(rank in self._statuses for rank in range(self.world_size)):
                raise Failure("the process that starts the ranks ended unexpectedly", 1)
            return
        for report in reports:
            if "error" in report:
                raise Failure(report["error"], report.get("code", 1))
            self._statuses[report["rank"]] = report["status"]
            if report["rank"] not in self._connections:
                self._gone.add(report["rank"])
            self._maybe_ended(report["rank"])

    def _maybe_ended(self, rank: int) -> None:
        """A rank has ended when its process is reaped and its socket is read to the end."""
        if rank not in self._gone or rank not in self._statuses:
            return
        self.simulation.ended(rank)
        if os.waitstatus_to_exitcode(self._statuses[rank]) != 0:
            if not self._failed:
                self._failed_at = time.monotonic()
            self._failed.append(rank)

    def _fail(self) -> None:
        """Of the ranks that failed, the one that did so first in virtual time is the cause."""
        ranks = self.simulation.ranks
        first = min(self._failed, key=lambda number: (ranks[number].timeline.clock_ns, number))
        code = os.waitstatus_to_exitcode(self._statuses[first])
        error = ranks[first].error
        if code < 0:
            import signal

            text = f"rank {first} was killed by {signal.Signals(-code).name}"
            code = 128 - code
        elif error:
            text = f"rank {first} failed with exit code {code}:\n{error}"
        else:
            text = f"rank {first} ended with exit code {code} (sys.exit or os._exit)"
        others = sorted(set(self._failed) - {first})
        if others:
            text += f"\n(also failed: ranks {others})"
        raise Failure(text, code, first)

    def _drain_output(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, tuple):
                while key.data[1]():
                    pass

    # -------------------------------------------------------------- nothing moves

    def _nothing_moves(self) -> None:
        """No message for a while: a rank that uses no CPU waits for something that the engine cannot see."""
        running = {
            rank.number: self._connections[rank.number].pid
            for rank in self.simulation.ranks
            if rank.state is State.RUNNING and not rank.unseen_wait and rank.number in self._connections
        }
        for number in self._watchdog.idle(running):
            self.warnings.append(
                f"rank {number} waits for something outside the simulation (a lock, a pipe, a process, a file?): treated as blocked at "
                f"{self.simulation.ranks[number].timeline.clock_ns / 1e9:.6f} s of virtual time"
            )
            self.simulation.ranks[number].unseen_wait = True
        if not running or not self._watchdog.recent:
            self.simulation.advance()
        if self._watchdog.hopeless([c.pid for c in self._connections.values()]):
            raise SimulationError("nothing has moved for a long time: " + self.simulation.deadlock())
