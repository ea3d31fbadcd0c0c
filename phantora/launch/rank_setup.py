"""Arming the interception in a process that is about to import torch: clocks, simulated device, prices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phantora.cluster import load_cluster
from phantora.cluster.spec import Cluster
from phantora.launch.options import JobOptions


def arm_interception(options: JobOptions, on_torch_ready: tuple[Callable[[], None], ...] = ()) -> None:
    """Before `import torch`. UserError when the device cannot be built here (no compiler, unsupported torch)."""
    from phantora.compute.pricer import Pricer, price_table
    from phantora.intercept import boot, clock_patches, moe_routing, session

    cluster = load_cluster(options.cluster)
    clock_patches.install()
    table = price_table(options.prices) if options.prices else None
    session.set_pricer(Pricer(cluster.gpu, cluster.host, table, cluster.intra_node))
    moe_routing.choose(moe_routing.parse(options.moe_routing))
    boot.arm(boot_config(cluster, options, on_torch_ready))


def set_up_rank(options: JobOptions, rank: int) -> None:
    """In a forked rank, before it connects: what is different from rank to rank, or asked for by the job."""
    import phantora_native as native  # type: ignore[import-not-found]

    from phantora.compute.power import gpu_power
    from phantora.launch.rank_speed import slow_down

    cluster = load_cluster(options.cluster)
    slow_down(cluster, options, rank)
    if options.contention is not None or gpu_power(cluster.gpu) is not None:
        native.set_local_answers(False)  # how long a kernel takes depends on what runs beside it, and ran before it


def seed_generators(rank: int) -> None:
    """What a script that seeds nothing draws: different on each rank, the same in every run. (CUDA's seed is fixed anyway.)"""
    import random

    import numpy
    import torch

    random.seed(rank)
    numpy.random.seed(rank)
    torch.default_generator.manual_seed(rank)


def boot_config(cluster: Cluster, options: JobOptions, on_torch_ready: tuple[Callable[[], None], ...] = ()) -> Any:
    """What the simulated device must know of the cluster."""
    from phantora.intercept import boot

    return boot.BootConfig(
        num_devices=cluster.gpus_per_node,
        gpu=cluster.gpu,
        measured_host_time=options.host_time == "measured",
        host_speed=cluster.host.cpu_speed,
        call_cost_ns=dict(cluster.host.launch_ns),
        unit_ns=dict(cluster.host.unit_ns),
        on_torch_ready=on_torch_ready,
    )
