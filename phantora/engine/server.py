"""The engine's process: sockets of the ranks, their output, their ends; feeds `Simulation` and delivers its replies.

One thread, one selector. Real time appears here only: to notice that nothing moves any more, and to draw the progress.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import msgpack

from phantora.engine.connection import Connection
from phantora.engine.protocol import Frame
from phantora.engine.simulation import Simulation, State
from phantora.engine.watchdog import Watchdog
from phantora.errors import SimulationError

_TURN_S = 0.1  # of the loop, when nobody speaks
# After the first rank has failed, others that fail for the same reason are waited for this long (real time).
_GRACE_S = 0.3
_END_S = 3.0  # a rank that said it has failed, while threads or exit handlers of its own go on, is ended after this
_HELD_S = 0.3  # the socket of a process that has ended is silent for this long: somebody else holds its other end
_STOPPED_SAID_S, _STOPPED_END_S = 2.0, 20.0  # a rank is stopped by a signal: this is said, and ends the run


class Failure(Exception):
    """A rank ended badly. code: the exit code that the whole run gets; rank: which one, if it was one."""

    def __init__(self, message: str, code: int, rank: int | None = None) -> None:
        super().__init__(message)
        self.code, self.rank = code, rank


class Server:
    """Runs one job.

    launcher: has `control`, readable when reports() has something: each report is {"rank", "status"} (a wait status) or
    {"error"} when the ranks could not be started, {"command": exit code} when the user's own launcher has ended. With such a
    one (`is_command`) nobody reports the ranks' ends: they are what the ranks said last. warn(text) is called at once for what the user should know at once.
    """

    def __init__(
        self,
        listener: socket.socket,
        launcher: Any,
        make_simulation: Callable[..., Simulation],
        world_size: int,
        warn: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.simulation = make_simulation(self._reply)
        self.world_size = world_size
        self.warnings: list[str] = []
        self._launcher, self._warn_at_once = launcher, warn
        self._connections: dict[int, Connection] = {}
        self._statuses: dict[int, int] = {}
        self._ended_at: dict[int, float] = {}  # rank -> when its process was reaped
        self._said_failed: dict[int, float] = {}  # rank -> when it said that it had failed
        self._background: dict[int, set[int]] = {}  # rank -> calls of its threads that are not answered yet
        self._failed: list[int] = []
        self._failed_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(launcher.control, selectors.EVENT_READ, self._launcher_spoke)
        self._said_stopped: set[int] = set()
        self._watchdog = Watchdog()
        self._stuck_since = 0.0
        self._gone: set[int] = set()

    def watch(self, fd: int, reader: Callable[[], bool]) -> None:
        """Also call `reader()` when `fd` is readable, until it returns False."""
        self._selector.register(fd, selectors.EVENT_READ, (fd, reader))

    def adopt(self, sock: socket.socket) -> None:
        """Take over a connection that was accepted elsewhere, nothing of it read."""
        self._selector.register(sock, selectors.EVENT_READ, Connection(sock))

    def run(self, tick: Callable[[], None]) -> None:
        """Until every rank has ended. tick() is called often. Failure or SimulationError when the run cannot go on."""
        while not self.simulation.all_finished:
            spoke = self._turn(_TURN_S)
            self._watchdog.turn()
            if spoke:
                self._watchdog.spoke()
                if not self._failed and not self._stuck_since:  # what the others then wait for is a consequence
                    self.simulation.advance()
            elif not self._failed and not self._stuck_since:
                self._nothing_moves()
            self._end_held_and_failing()
            if self._stuck_since and not self._failed and time.monotonic() - self._stuck_since > _GRACE_S:
                raise SimulationError(self.simulation.deadlock())
            if self._failed and time.monotonic() - self._failed_at > _GRACE_S:
                self._fail()
            tick()
        self._drain_output()
        if self._failed:
            self._fail()
        self.simulation.finish()

    def _turn(self, timeout: float) -> bool:
        """Take in what is there; whether a rank or the launcher spoke."""
        spoke = False
        for key, _ in self._selector.select(timeout):
            spoke |= self._handle(key)
        return spoke

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
            connection.send_if_it_fits(Frame.ABORT, {"reason": reason})
        self._launcher.kill()

    def warn(self, text: str) -> None:
        """Once: at once for the user, and in the notes of the run."""
        if text not in self.warnings:
            self.warnings.append(text)
            self._warn_at_once(text)

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
        self.adopt(sock)

    def _rank_spoke(self, connection: Connection) -> None:
        open_still = connection.receive()
        for frame, payload in connection.frames():
            self._dispatch(connection, frame, payload)
        if not open_still:
            self._selector.unregister(connection.sock)
            if connection.rank is not None:
                self._gone.add(connection.rank)
                if self._launcher.is_command:
                    self._statuses[connection.rank] = self._last_word(connection.rank)
                self._maybe_ended(connection.rank)

    def _dispatch(self, connection: Connection, frame: int, payload: bytes) -> None:
        simulation, rank = self.simulation, connection.rank
        if rank is None and frame == Frame.NOTE:  # of a process that is no rank
            self.warn(str(msgpack.unpackb(payload)["remark"]))
            return
        if frame == Frame.HELLO:
            fields = msgpack.unpackb(payload)
            self._check_hello(fields)
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
        if frame == Frame.CALL and not fields["main"]:
            self._background.setdefault(rank, set()).add(fields["id"])
        elif frame == Frame.NOTE and fields["method"] == "finish" and fields["exit_code"]:
            self._said_failed.setdefault(rank, time.monotonic())
        handlers[frame](rank, fields)

    def _check_hello(self, fields: dict[str, Any]) -> None:
        """With the user's own launcher anything may come."""
        rank = fields["rank"]
        if fields["world_size"] != self.world_size or not 0 <= rank < self.world_size:
            raise Failure(
                f"a process joined as rank {rank} of {fields['world_size']}, but the run has {self.world_size} ranks: jobs one "
                "after the other, and worlds that change, need runs of their own", 2,
            )  # fmt: skip
        if rank in self._connections:
            raise Failure(f"a second process joined as rank {rank}: restarted ranks are not simulated", 2)

    def _last_word(self, rank: int) -> int:
        """A wait status from what the rank said at its end."""
        state = self.simulation.ranks[rank]
        if state.timeline.trace.exit_code is None:
            state.error = state.error or "it ended without a word: killed by a signal, or by its launcher"
            return 1 << 8
        return state.timeline.trace.exit_code << 8

    def _reply(self, rank: int, message: dict[str, Any]) -> None:
        calls = self._background.get(rank)
        if calls and message["id"] in calls:
            calls.discard(message["id"])
            self.simulation.ranks[rank].unseen_wait = False  # its main thread may have waited for just this
            self._watchdog.spoke()
        self._connections[rank].send(Frame.REPLY, message)

    # -------------------------------------------------------------- ends

    def _launcher_spoke(self) -> None:
        reports = self._launcher.reports()
        if reports is None:
            self._selector.unregister(self._launcher.control)
            if not all(rank in self._statuses for rank in range(self.world_size)):
                raise Failure(f"the process that starts the ranks ended unexpectedly{self._launcher.how_it_ended()}", 1)
            return
        for report in reports:
            if "error" in report:
                raise Failure(report["error"], report.get("code", 1))
            if "command" in report:
                self._command_ended(report["command"])
                continue
            self._statuses[report["rank"]] = report["status"]
            self._ended_at[report["rank"]] = time.monotonic()
            self._maybe_ended(report["rank"])

    def _command_ended(self, code: int) -> None:
        """Ranks that have not joined will not come any more."""
        missing = [rank for rank in range(self.world_size) if rank not in self._connections]
        if missing and not self._failed:
            raise Failure(f"the launcher ended with exit code {code}, but ranks {missing} never joined the run", code or 1)

    def _maybe_ended(self, rank: int) -> None:
        """A rank has ended when its process is reaped and its socket is read to the end."""
        if rank not in self._gone or rank not in self._statuses:
            return
        self._ended_at.pop(rank, None)
        try:
            self.simulation.ended(rank)
        except SimulationError:  # said when the others have ended too, or have not: a better message
            self._stuck_since = self._stuck_since or time.monotonic()
        if os.waitstatus_to_exitcode(self._statuses[rank]) != 0:
            self._has_failed(rank)

    def _has_failed(self, rank: int) -> None:
        if not self._failed:
            self._failed_at = time.monotonic()
        if rank not in self._failed:
            self._failed.append(rank)

    def _end_held_and_failing(self) -> None:
        """Ranks that have ended, or failed, though not everything of them has."""
        now = time.monotonic()
        for rank, since in list(self._ended_at.items()):
            connection = self._connections.get(rank)
            if now - since > _HELD_S and (connection is None or not connection.is_readable()):
                if connection is not None:
                    self._selector.unregister(connection.sock)
                self._gone.add(rank)
                self._maybe_ended(rank)
        for rank, since in self._said_failed.items():
            if now - since > _END_S and rank not in self._statuses:
                self._has_failed(rank)

    def _fail(self) -> None:
        """Of the ranks that failed, the one that did so first in virtual time is the cause."""
        ranks = self.simulation.ranks
        # (A launcher kills the others when it sees that one has failed: those have said nothing.)
        first = min(self._failed, key=lambda n: (ranks[n].timeline.trace.exit_code is None, ranks[n].timeline.clock_ns, n))
        trace, error = ranks[first].timeline.trace, ranks[first].error
        code = os.waitstatus_to_exitcode(self._statuses[first]) if first in self._statuses else trace.exit_code or 1
        if code < 0:
            text = f"rank {first} was killed by {signal_name(-code)}"
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
        """What the ranks have written; not until the end of their pipes, which a process of theirs may hold."""
        deadline = time.monotonic() + 5.0
        while time.monotonic() < deadline:
            ready = self._selector.select(timeout=_HELD_S if self._has_output() else 0.0)
            for key, _ in ready:
                if isinstance(key.data, tuple):
                    self._handle(key)
            if not any(isinstance(key.data, tuple) for key, _ in ready):
                return

    def _has_output(self) -> bool:
        return any(isinstance(key.data, tuple) for key in self._selector.get_map().values())

    # -------------------------------------------------------------- nothing moves

    def _nothing_moves(self) -> None:
        """No message for a while: a rank that uses no CPU waits for something that the engine cannot see."""
        stopped = self._look_for_stopped()
        running = {
            rank.number: self._connections[rank.number].pid
            for rank in self.simulation.ranks
            if rank.state is State.RUNNING and not rank.unseen_wait and rank.number in self._connections
        }
        if any(rank in stopped for rank in running):
            return  # it may go on
        on_engine = [rank for rank in running if self._background.get(rank)]
        idle = self._watchdog.idle(running, on_engine)
        for number in idle:
            if number not in on_engine:
                self.warn(
                    f"rank {number} waits for something outside the simulation (a lock, a pipe, a process, a file?): treated as "
                    f"blocked at {self.simulation.ranks[number].timeline.clock_ns / 1e9:.6f} s of virtual time"
                )
            self.simulation.ranks[number].unseen_wait = True
        if idle or not running or not self._watchdog.recent:
            self.simulation.advance()
        if self._watchdog.hopeless([c.pid for c in self._connections.values()]):
            raise SimulationError("nothing has moved for a long time: " + self.simulation.deadlock())

    def _look_for_stopped(self) -> dict[int, float]:
        """Rank -> seconds. Says which are stopped; ends the run when nobody lets them go on."""
        processes = {rank: c.pid for rank, c in self._connections.items() if rank not in self._statuses}
        stopped = self._watchdog.stopped(processes)
        for rank, seconds in stopped.items():
            if seconds > _STOPPED_SAID_S and rank not in self._said_stopped:
                self._said_stopped.add(rank)
                self._warn_at_once(
                    f"rank {rank} is stopped by a signal (`kill -CONT {processes[rank]}` lets it go on): the run ends after "
                    f"{_STOPPED_END_S:g} s without it"
                )
        if stopped and min(max(stopped.values()), self._watchdog.silent_s) > _STOPPED_END_S:
            names = ", ".join(f"rank {rank}" for rank in stopped)
            raise SimulationError(f"{names} stopped by a signal (SIGSTOP?) for more than {_STOPPED_END_S:g} s, and nothing else moves")
        return stopped


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # a real-time signal
