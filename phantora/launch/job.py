"""One job from start to end: engine, ranks, output, results on disk."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TextIO

from phantora.cluster import Placement, check_world, load_cluster
from phantora.cluster.spec import Cluster
from phantora.cluster.variation import check_stragglers
from phantora.compute.power import gpu_power
from phantora.engine.server import Failure, Server
from phantora.engine.simulation import Simulation
from phantora.engine.recording import recorded_run
from phantora.errors import SimulationError, UserError
from phantora.launch.endpoint import Endpoint
from phantora.launch.first_rank import wait_for_first_rank
from phantora.launch.interrupts import Interrupted, Interrupts
from phantora.launch.launcher import Launcher
from phantora.launch.options import JobOptions
from phantora.launch.output import OutputPipes
from phantora.launch.output_check import prepare_output
from phantora.launch.results import INTERNAL_ERROR
from phantora.launch.texts import printable, shortened
from phantora.network import NetworkSimulator
from phantora.network.contention import ContentionModel
from phantora.trace.model import Run

_BACKLOG = 1024  # of connections of ranks whose number is not known yet


@dataclass(slots=True)
class JobResult:
    """What came out. exit_code: of the run; error: what ended it, None when it ended well; failed_rank: who, if one did.

    log_failures: messages about logs that could not be written; is_user_error: there is nothing to report but `error`.
    """

    run: Run
    exit_code: int
    error: str | None
    warnings: list[str]
    failed_rank: int | None = None
    log_failures: list[str] = field(default_factory=list)
    is_user_error: bool = False


class Job:
    """Runs the ranks under the engine. progress(simulation) is called several times a second."""

    def __init__(
        self,
        options: JobOptions,
        write: Callable[[str, TextIO], None],
        progress: Callable[[Simulation], None],
        warn: Callable[[str], None] = lambda text: None,
        interrupts: Interrupts | None = None,
    ) -> None:
        """write: see OutputPipes; warn: what the user should know at once; interrupts: None when nobody interrupts."""
        self.options = options
        self.cluster: Cluster = load_cluster(options.cluster)
        self._has_command = bool(options.launch_command)
        if not self._has_command:
            self._place(options)
        self.contention = _contention(options)
        self._write, self._progress, self._warn = write, progress, warn
        self._interrupts = interrupts or Interrupts()
        self._failed_rank: int | None = None
        self._is_user_error = False

    def _place(self, options: JobOptions) -> None:
        self.options = options
        self.placement = Placement(self.cluster, options.nnodes, options.nproc_per_node)
        check_stragglers(self.cluster, self.placement)

    def run(self) -> JobResult:
        """Blocks until the job has ended. An interrupt ends every process and still returns what was recorded."""
        started = time.monotonic()
        prepare_output(self.options)
        endpoint = Endpoint(_BACKLOG if self._has_command else self.options.world_size)
        self._interrupts.cleanups.append(endpoint.remove)
        try:
            pipes = OutputPipes(self.options, self._write)
            server, code, error = self._play(endpoint, pipes)
        except Failure as failure:  # no rank ever came
            return self._nothing_ran(failure)
        finally:
            endpoint.remove()
        pipes.close()
        run, code, error = self._recorded(server.simulation, code, error)
        run.wall_s = time.monotonic() - started
        run.notes += [*_contention_notes(self.contention), *server.warnings]
        return JobResult(run, code, error, server.warnings, self._failed_rank, pipes.failures, self._is_user_error)

    def _play(self, endpoint: Endpoint, pipes: OutputPipes) -> tuple[Server, int, str | None]:
        """(server, exit code, error)."""
        launcher = Launcher(self.options, endpoint.path, pipes.write_ends)
        self._interrupts.cleanups.append(launcher.kill_now)
        try:
            readers, joined = pipes.readers, []
            if self._has_command:
                readers, joined = self._await_first_rank(endpoint, launcher, pipes)
            server = Server(endpoint.listener, launcher, self._simulation, self.options.world_size, self._warn)
            for fd, reader in readers:
                server.watch(fd, reader)
            for connection in joined:
                server.adopt(connection)
            code, error = self._serve(server, launcher, pipes)
        except BaseException:
            launcher.kill()
            raise
        return server, code, error

    def _await_first_rank(self, endpoint: Endpoint, launcher: Launcher, pipes: OutputPipes) -> tuple[list[Any], list[Any]]:
        """(output pipes that are open, connections that wait), once the world is known and placed."""

        def tick() -> None:
            self._interrupts.check()
            pipes.show_held()

        command = self.options.launch_command[0]
        first = wait_for_first_rank(endpoint.listener, launcher, command, pipes.readers, tick)
        try:
            options = self.options.with_world(first.world_size, first.local_size)
            check_world(self.cluster, options.nnodes, options.nproc_per_node)
            self._place(options)
        except (UserError, ValueError) as error:
            raise Failure(str(error), 2) from None
        return first.readers, first.connections

    def _nothing_ran(self, failure: Failure) -> JobResult:
        run = Run(list(self.options.command), self.cluster, 0, 1, complete=False, error=str(failure))
        return JobResult(run, failure.code, str(failure), [], is_user_error=True)

    def _simulation(self, reply: Callable[..., None]) -> Simulation:
        network = NetworkSimulator(self.cluster, self.placement, os.environ)
        return Simulation(self.options.world_size, network, reply, self.contention, gpu_power(self.cluster.gpu))

    def _serve(self, server: Server, launcher: Launcher, pipes: OutputPipes) -> tuple[int, str | None]:
        """(exit code, error)."""

        def tick() -> None:
            self._interrupts.check()
            pipes.show_held()
            self._progress(server.simulation)

        try:
            server.run(tick)
            code = launcher.wait()
            return code, None if not code else f"{self.options.launch_command[0]} ended with exit code {code}"
        except Failure as failure:
            code, error, self._failed_rank = failure.code, str(failure), failure.rank
            self._is_user_error = failure.rank is None and code == 2
        except SimulationError as failure:
            code, error = 1, str(failure)
        except Interrupted as interrupt:
            code, error = interrupt.code, str(interrupt)
        except Exception:
            code, error = INTERNAL_ERROR, _internal_error()
        server.abort(shortened(error))
        server.drain()
        return code, shortened(error)

    def _recorded(self, simulation: Simulation, code: int, error: str | None) -> tuple[Run, int, str | None]:
        """(what was recorded, exit code, error); after an internal error the state may be torn, and less is recorded."""
        try:
            try:
                simulation.close()
            except Exception:
                code, error = _first_error(code, error)
            return recorded_run(simulation, self.cluster, self.options, error), code, error
        except Exception:
            code, error = _first_error(code, error)
            command, size = [printable(word) for word in self.options.command], self.options.world_size
            return Run(command, self.cluster, size, self.options.nproc_per_node, complete=False, error=error), code, error


def _first_error(code: int, error: str | None) -> tuple[int, str]:
    """The error that ended the run is the cause; else the exception that is handled now."""
    return (INTERNAL_ERROR, _internal_error()) if error is None else (code, error)


def _internal_error() -> str:
    """About the exception that is handled now."""
    return shortened("internal error: this is a fault of phantora, not of the script\n" + traceback.format_exc().rstrip())


def _contention(options: JobOptions) -> ContentionModel | None:
    if options.contention is None:
        return None
    compute, collective = options.contention
    return ContentionModel(compute_factor=compute, collective_factor=collective)


def _contention_notes(model: ContentionModel | None) -> list[str]:
    return [] if model is None else [model.described]
