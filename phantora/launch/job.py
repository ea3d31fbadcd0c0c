"""One job from start to end: engine, ranks, output, results on disk."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from phantora.cluster import Placement, load_cluster
from phantora.cluster.spec import Cluster
from phantora.cluster.variation import check_stragglers
from phantora.engine.server import Failure, Server
from phantora.engine.simulation import Simulation
from phantora.engine.recording import recorded_run
from phantora.errors import SimulationError
from phantora.launch.launcher import Launcher
from phantora.launch.options import JobOptions
from phantora.launch.output import OutputPipes
from phantora.network import NetworkSimulator
from phantora.network.contention import ContentionModel
from phantora.trace.model import Run


@dataclass(slots=True)
class JobResult:
    """What came out. exit_code: of the run; error: what ended it, None when it ended well; failed_rank: who, if one did."""

    run: Run
    exit_code: int
    error: str | None
    warnings: list[str]
    failed_rank: int | None = None


class Job:
    """Runs the ranks under the engine. progress(simulation) is called several times a second."""

    def __init__(self, options: JobOptions, write: Callable[[str, TextIO], None], progress: Callable[[Simulation], None]) -> None:
        self.options = options
        self.cluster: Cluster = load_cluster(options.cluster)
        self.placement = Placement(self.cluster, options.nnodes, options.nproc_per_node)
        check_stragglers(self.cluster, self.placement)
        self.contention = _contention(options)
        self._write, self._progress = write, progress
        self._failed_rank: int | None = None

    def run(self) -> JobResult:
        """Blocks until the job has ended. Ctrl-C ends every process and still returns what was recorded."""
        options, started = self.options, time.monotonic()
        Path(options.out).mkdir(parents=True, exist_ok=True)
        pipes = OutputPipes(options, self._write)
        directory = tempfile.mkdtemp(prefix="phantora-")  # a socket's path must be short
        try:
            endpoint = os.path.join(directory, "engine")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(endpoint)
            listener.listen(options.world_size)
            launcher = Launcher(options, endpoint, pipes.write_ends)
            server = Server(listener, launcher, self._simulation, options.world_size)
            for fd, reader in pipes.readers:
                server.watch(fd, reader)
            code, error = self._serve(server, launcher)
            listener.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        server.simulation.close()
        run = recorded_run(server.simulation, self.cluster, options, error)
        run.wall_s = time.monotonic() - started
        run.notes += [*_contention_notes(self.contention), *server.warnings]
        return JobResult(run, code, error, server.warnings, self._failed_rank)

    def _simulation(self, reply: Callable[..., None]) -> Simulation:
        network = NetworkSimulator(self.cluster, self.placement, os.environ)
        return Simulation(self.options.world_size, network, reply, self.contention)

    def _serve(self, server: Server, launcher: Launcher) -> tuple[int, str | None]:
        """(exit code, error)."""
        try:
            server.run(lambda: self._progress(server.simulation))
            launcher.wait()
            return 0, None
        except Failure as failure:
            code, error, self._failed_rank = failure.code, str(failure), failure.rank
        except SimulationError as failure:
            code, error = 1, str(failure)
        except KeyboardInterrupt:
            code, error = 130, "interrupted"
        except BaseException:
            launcher.kill()
            raise
        server.abort(error)
        server.drain()
        return code, error


def _contention(options: JobOptions) -> ContentionModel | None:
    if options.contention is None:
        return None
    compute, collective = options.contention
    return ContentionModel(compute_factor=compute, collective_factor=collective)


def _contention_notes(model: ContentionModel | None) -> list[str]:
    if model is None:
        return []
    return [
        f"contention: kernels x {model.compute_factor:g} while a collective runs on their GPU, "
        f"collectives x {model.collective_factor:g} when all their GPUs compute as they begin"
    ]
