"""`phantora simulate`: replay traces offline, on a cluster of ours or on ASTRA-sim's models. Only options and dispatch."""

from __future__ import annotations

from typing import Any

import click

from phantora.errors import UserError

_FILE = click.Path(dir_okay=False)
_ASTRA_OPTIONS = {"astra_system": "--astra-system", "astra_network": "--astra-network", "astra_memory": "--astra-memory"}
_REPLAY_OPTIONS = {
    "cluster": "--cluster", "reprice": "--reprice", "prices": "--prices", "contention": "--contention", "nproc_per_node": "--nproc-per-node",
    "out": "--out",
}  # fmt: skip


@click.command("simulate")
@click.argument("workload", metavar="PREFIX|RUN")
@click.option("--cluster", metavar="NAME|FILE.toml", help="Replay on the network of this cluster.  [default: the run's own]")
@click.option("--reprice", is_flag=True, help="Price kernels anew for the cluster's GPU.")
@click.option("--prices", type=_FILE, metavar="FILE", help="With --reprice: a table of phantora calibrate.  [default: the shipped one]")
@click.option("--contention", metavar="COMPUTE,COLLECTIVE|measured|off", help="Kernels and collectives on one GPU slow each other down.  [default: as in the run]")
@click.option("--nproc-per-node", "--nproc_per_node", type=click.IntRange(min=1), metavar="N", help="Ranks on each node.  [default: as in the run]")
@click.option("--out", type=click.Path(file_okay=False), metavar="DIR", help="Write the replayed run as a run's folder.")
@click.option("--astra-system", type=_FILE, metavar="S.json", help="ASTRA-sim's system configuration: go by its semantics.")
@click.option("--astra-network", type=_FILE, metavar="N.yml", help="ASTRA-sim's network configuration.")
@click.option("--astra-memory", type=_FILE, metavar="M.json", help="ASTRA-sim's remote memory configuration.")
@click.option("--backend", type=click.Choice(["congestion-unaware", "congestion-aware"]), help="ASTRA-sim's analytical network.  [default: congestion-unaware]")
@click.option("--num-queues-per-dim", type=click.IntRange(min=1), metavar="N", help="As ASTRA-sim's option.  [default: 1]")
@click.option("--injection-scale", type=float, metavar="X", help="As ASTRA-sim's option: factor of endpoint-delay.  [default: 1]")
@click.option("--rendezvous-protocol", type=bool, is_flag=False, flag_value="true", metavar="[BOOL]", help="As ASTRA-sim's option.")
@click.option("--comm-groups", type=_FILE, metavar="G.json", help="Communicator groups.  [default: comm_groups.json beside the traces, if RUN is a run]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(workload: str, **options: Any) -> None:
    """Replay traces: Chakra files PREFIX.RANK.et, or the folder of a recorded run."""
    if uses_astra(options):
        from phantora.astra.command import run_command

        click.echo(run_command(workload, options))
        return
    from phantora.replay.command import simulate as replay

    replay(workload=workload, **{name: options[name] for name in (*_REPLAY_OPTIONS, "comm_groups", "as_json")})


def uses_astra(options: dict[str, Any]) -> bool:
    """Whether the options ask for ASTRA-sim's semantics; UserError if they ask for both kinds, or for half of one."""
    given = [flag for name, flag in _ASTRA_OPTIONS.items() if options[name] is not None]
    extras = ("backend", "num_queues_per_dim", "injection_scale", "rendezvous_protocol")
    others = [f"--{name.replace('_', '-')}" for name in extras if options[name] is not None]
    ours = [flag for name, flag in _REPLAY_OPTIONS.items() if options[name]]
    if not given and not others:
        return False
    if ours:
        raise UserError(f"{ours[0]} (replay on a cluster) and {(given + others)[0]} (ASTRA-sim's semantics) exclude each other")
    missing = [flag for flag in _ASTRA_OPTIONS.values() if flag not in given]
    if missing:
        raise UserError(f"{(given + others)[0]} needs {' and '.join(missing)} too")
    return True
