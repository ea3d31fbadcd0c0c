"""`phantora import`: traces of other tools as a run, ASTRA-sim's configurations as a cluster. Options and writing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phantora.errors import UserError

if TYPE_CHECKING:
    from phantora.cluster import Cluster
    from phantora.importers.report import ImportReport
    from phantora.trace.model import Run

_FILE = click.Path(dir_okay=False)
_DEFAULT_CLUSTER = "dgx-h100"
_MAX_PERFETTO_RANKS = 16  # as in phantora.launch.results
_KINDS = {
    "kineto": "Kineto traces (JSON, .gz, .tar.gz, folder), one a rank; execution traces with them add shapes, groups.",
    "pytorch-et": "PyTorch execution traces (JSON, .gz, .tar.gz), alone or with the Kineto traces of the same step.",
    "chakra": "Chakra traces: PREFIX of PREFIX.RANK.et, a folder or .tar.gz of them, or the files in order of ranks.",
}


@click.group("import")
def import_traces() -> None:
    """Make a run of traces that other tools wrote, or a cluster file of ASTRA-sim's configurations."""


def _command(kind: str, text: str) -> click.Command:
    @click.argument("files", nargs=-1, required=True, metavar="FILES...")
    @click.option("--out", required=True, type=click.Path(file_okay=False), metavar="RUN", help="Folder of the run.")
    @click.option(
        "--cluster",
        metavar="NAME|FILE.toml",
        help="Where it was recorded.  [default: the smallest preset with its GPU]",
    )
    def run(files: tuple[str, ...], out: str, cluster: str | None) -> None:
        for line in import_files(kind, files, Path(out), cluster):
            click.echo(line)

    return click.command(kind, help=text)(run)


for _kind, _text in _KINDS.items():
    import_traces.add_command(_command(_kind, _text))


@import_traces.command("astra-config")
@click.option("--system", required=True, type=_FILE, metavar="S.json", help="ASTRA-sim's system configuration.")
@click.option("--network", required=True, type=_FILE, metavar="N.yml", help="ASTRA-sim's network configuration.")
@click.option("--memory", type=_FILE, metavar="M.json", help="ASTRA-sim's remote memory configuration.")
@click.option(
    "--base",
    default=_DEFAULT_CLUSTER,
    show_default=True,
    metavar="NAME|FILE.toml",
    help="Cluster that gives what ASTRA-sim lacks.",
)
@click.option("--out", required=True, type=_FILE, metavar="CLUSTER.toml", help="The cluster file.")
def astra_config(system: str, network: str, memory: str | None, base: str, out: str) -> None:
    """A cluster file of ASTRA-sim's configurations."""
    for line in import_astra_config(Path(system), Path(network), Path(memory) if memory else None, base, Path(out)):
        click.echo(line)


def import_files(kind: str, files: Sequence[str], out: Path, cluster: str | None) -> list[str]:
    """Read `files`, write the run to `out`; what to tell the user. UserError: nothing could be read, or written."""
    run, report = _reader(kind)(files)
    if run.source != "recorded":
        run.command = ["phantora", "import", kind, *files]
    run.cluster = _cluster_of(run, report, cluster)
    run.notes = list(dict.fromkeys([*run.notes, *report.as_notes()]))
    run.virtual_ns = max(run.virtual_ns, max((trace.host_end_ns for trace in run.ranks), default=0))
    if any(Path(file).resolve().parent == (out / "chakra").resolve() for file in report.files):
        raise UserError(f"--out {out} is the run that is being imported; name another folder")
    written = _write_whole(run, report, out)
    return [*report.lines(), *(f"{what}: {where}" for what, where in written.items())]


def _write_whole(run: Run, report: ImportReport, out: Path) -> dict[str, Path]:
    """The files get their names when all are complete: an import that is broken off leaves `out` as it was."""
    parent = out.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".part", dir=parent) as name:
            staging = Path(name)
            written = _write(run, staging)
            written["report"] = report.write(staging / "import_report.json")
            _move(staging, out)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}") from None
    return {what: out / path.relative_to(staging) for what, path in written.items()}


def _move(staging: Path, out: Path) -> None:
    from phantora.exporters.chakra import remove_others

    files = sorted(path for path in staging.rglob("*") if path.is_file())
    for path in files:
        target = out / path.relative_to(staging)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
    remove_others(out / "chakra", {path.name for path in files if path.parent.name == "chakra"})


def _reader(kind: str) -> Callable[[Sequence[str]], tuple[Run, ImportReport]]:
    if kind == "chakra":
        from phantora.importers import chakra

        return lambda files: chakra.read(files[0] if len(files) == 1 and not Path(files[0]).is_file() else list(files))
    if kind == "kineto":
        from phantora.importers import kineto

        return kineto.read
    from phantora.importers import pytorch_et

    return pytorch_et.read


def _cluster_of(run: Run, report: ImportReport, name: str | None) -> Cluster:
    """The cluster that was asked for or, for a recording of ours, its own; else a preset with the GPU of the trace."""
    from phantora.cluster import Cluster, list_clusters, load_cluster

    if name is not None:
        cluster = load_cluster(name)
        run.nproc_per_node = min(run.nproc_per_node or cluster.gpus_per_node, cluster.gpus_per_node)
        _check_fit(run, cluster)
        return cluster
    if isinstance(run.cluster, Cluster):
        return run.cluster
    presets = [load_cluster(preset) for preset in list_clusters()]
    fitting = [c for c in presets if c.gpu.name == report.gpu and _fits(run, c)]
    if fitting:
        cluster = min(fitting, key=lambda c: (c.num_gpus, c.name))
        report.note(
            f"cluster: {cluster.name}, the smallest preset with the GPU of the trace ({report.gpu}); "
            "--cluster names another"
        )
    else:
        cluster = load_cluster(_DEFAULT_CLUSTER)
        what = (
            f"no preset has the GPU of the trace ({report.gpu}) and room for it"
            if report.gpu
            else "the trace does not name its GPU"
        )
        report.note(
            f"cluster: {what}; {cluster.name} is put down instead, which changes no recorded time; "
            "--cluster names another"
        )
    run.nproc_per_node = min(run.nproc_per_node or cluster.gpus_per_node, cluster.gpus_per_node)
    _check_fit(run, cluster)
    return cluster


def _fits(run: Run, cluster: Cluster) -> bool:
    nproc = min(run.nproc_per_node or cluster.gpus_per_node, cluster.gpus_per_node)
    return -(-run.world_size // nproc) <= cluster.num_nodes


def _check_fit(run: Run, cluster: Cluster) -> None:
    from phantora.cluster import check_world

    try:
        check_world(cluster, -(-run.world_size // run.nproc_per_node), run.nproc_per_node)
    except UserError as error:
        ranks = f"{run.world_size} rank{'s' if run.world_size != 1 else ''}"
        raise UserError(f"--cluster: the trace is of {ranks}: {error}") from None


def _write(run: Run, out: Path) -> dict[str, Path]:
    """The files of a recorded run, by the same writers."""
    from phantora.launch.options import JobOptions
    from phantora.launch.results import write_results

    options = JobOptions(
        script="import",
        out=str(out),
        nnodes=-(-run.world_size // run.nproc_per_node),
        nproc_per_node=run.nproc_per_node,
        perfetto_ranks=tuple(trace.rank for trace in run.ranks[:_MAX_PERFETTO_RANKS]),
    )
    written = write_results(run, options)
    if written.failures:
        raise UserError("; ".join(written.failures))
    return {what: path for what, path in written.files.items() if what != "logs"}


def import_astra_config(system: Path, network: Path, memory: Path | None, base: str, out: Path) -> list[str]:
    """Write the cluster file; what to tell the user."""
    from phantora.astra.config import load_memory, load_network, load_system
    from phantora.cluster import list_clusters, load_cluster
    from phantora.importers.astra_config import cluster_file

    load_cluster(base)
    dimensions = load_network(network)
    found = load_system(system, len(dimensions))
    named = base if base in list_clusters() else str(Path(base).absolute())
    shown = f"{network} and {system}"
    made = cluster_file(dimensions, found.peak_flops, found.local_mem_bytes_per_ns, named, shown)
    notes = list(made.notes)
    num_npus = 1
    for dimension in dimensions:
        num_npus *= dimension.size
    if memory is not None and load_memory(memory, num_npus).exists:
        notes.append(f"{memory}: remote memory is left out: a cluster file has none")
    if found.algorithms:
        notes.append("collective algorithms, chunks and endpoint-delay are left out: Phantora chooses as NCCL does")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(made.text, encoding="utf-8")
    cluster = load_cluster(out)
    return [f"{out}: {cluster.num_nodes} nodes of {cluster.gpus_per_node} GPUs", *(f"note: {note}" for note in notes)]
