"""`phantora simulate PREFIX|RUN --cluster X`: reads traces, replays them, prints the result as a live run does."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from phantora.cluster import load_cluster
from phantora.cluster.spec import Cluster
from phantora.errors import UserError
from phantora.importers.chakra import read
from phantora.importers.chakra_file import find_chakra
from phantora.network.contention import ContentionModel, parse_contention
from phantora.replay.replayer import ReplayOptions, replay
from phantora.report.breakdown import rank_end_ns
from phantora.report.summary import summarize
from phantora.trace.model import Run


def simulate(
    workload: str, cluster: str | None, reprice: bool, comm_groups: str | None, as_json: bool, out: str | None = None,
    contention: str | None = None, nproc_per_node: int | None = None, prices: str | None = None,
) -> None:  # fmt: skip
    """Replay `workload` and print; exit by UserError for whatever cannot be."""
    if out is not None:
        _check_out(workload, out)
    with _without_garbage_collection():
        result = _replayed(workload, cluster, reprice, comm_groups, contention, nproc_per_node, prices)
    _show(result, as_json, out)


def _check_out(workload: str, out: str) -> None:
    """UserError if the result would be written over the traces that are read."""
    if Path(workload).is_file():
        return  # an archive
    traces = (Path(out) / "chakra").resolve()
    if any(path.resolve().parent == traces for path in find_chakra(workload).values()):
        raise UserError(f"--out {out} is the run that is being replayed; name another folder")


def _replayed(
    workload: str, cluster: str | None, reprice: bool, comm_groups: str | None, contention: str | None,
    nproc_per_node: int | None, prices: str | None,
) -> Run:  # fmt: skip
    run, _ = read(workload, comm_groups)
    target = load_cluster(cluster) if cluster is not None else run.cluster
    if not isinstance(target, Cluster):
        raise UserError(f"{workload} does not say on which cluster it ran: --cluster NAME|FILE.toml is needed")
    if prices is not None and not reprice:
        raise UserError("--prices needs --reprice: recorded kernels take what they took")
    factors = contention_factors(contention, run)
    options = ReplayOptions(
        reprice=reprice,
        contention=None
        if factors is None
        else ContentionModel(compute_factor=factors[0], collective_factor=factors[1]),
        nproc_per_node=nproc_per_node,
        prices=prices,
    )
    return replace(replay(run, target, options), command=["phantora", *sys.argv[1:]])


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A replay makes many objects that live to its end; looking for garbage among them takes a third of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _show(result: Run, as_json: bool, out: str | None) -> None:
    code = 0
    if out is not None:
        code = write_run(result, out, quiet=as_json)
    elif not as_json:
        from phantora.report.table import print_report

        print_report(result, {})
    if as_json:
        click.echo(json.dumps(json_result(result), indent=2))
    if code:
        sys.exit(code)


def contention_factors(text: str | None, run: Run) -> tuple[float, float] | None:
    """--contention COMPUTE,COLLECTIVE | measured | off; without it as in the run."""
    if text is None:
        return run.contention
    return parse_contention(text)


def json_result(run: Run) -> dict[str, Any]:
    """What --json prints. finish_ns: end of each rank's host, or of its last work if that is later."""
    summary = summarize(run)
    return {
        "virtual_ns": run.virtual_ns,
        "finish_ns": {str(trace.rank): rank_end_ns(trace) for trace in run.ranks},
        **{key: summary[key] for key in ("cluster", "world_size", "steps", "ranks", "collectives", "notes")},
    }


def write_run(run: Run, out: str, quiet: bool) -> int:
    """The folder of a run, as a live one writes it; the exit code that failures call for."""
    from phantora.launch.options import JobOptions
    from phantora.launch.results import write_results
    from phantora.launch.terminal import say
    from phantora.report.table import print_report

    folder = Path(out).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from None
    options = JobOptions(
        script="", nnodes=run.world_size // run.nproc_per_node, nproc_per_node=run.nproc_per_node, out=str(folder),
        contention=run.contention,
    )  # fmt: skip
    written = write_results(run, options)
    written.files.pop("logs", None)
    if not quiet:
        print_report(run, written.files, summary=written.summary)
    for failure in written.failures:
        say(f"phantora: {failure}")
    return written.code
