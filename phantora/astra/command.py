"""`phantora simulate` with ASTRA-sim's files: what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phantora.astra.simulate import Inputs, Result, load, simulate
from phantora.errors import UserError


def run_command(workload: str, options: dict[str, Any]) -> str:
    """The output, for the options of `phantora.simulate_command`. UserError for whatever cannot be simulated."""
    result = simulate(load(_inputs(workload, options)))
    return as_json(result) if options["as_json"] else as_table(result, options["backend"] or "congestion-unaware")


def _inputs(workload: str, options: dict[str, Any]) -> Inputs:
    scale = options["injection_scale"]
    if scale is not None and not 0 < scale < 1e9:
        raise UserError(f"--injection-scale {scale}: must be above 0 and below 1e9")
    groups = options["comm_groups"]
    return Inputs(
        workload=Path(workload),
        system=Path(options["astra_system"]),
        network=Path(options["astra_network"]),
        memory=Path(options["astra_memory"]),
        groups=Path(groups) if groups else _groups_beside(Path(workload)),
        is_aware=options["backend"] == "congestion-aware",
        num_queues_per_dim=options["num_queues_per_dim"] or 1,
        injection_scale=1.0 if scale is None else scale,
        rendezvous=bool(options["rendezvous_protocol"]),
    )


def _groups_beside(workload: Path) -> Path | None:
    """comm_groups.json of the folder of a run; traces given by their prefix need --comm-groups, as with ASTRA-sim."""
    beside = workload / "chakra" / "comm_groups.json"
    return beside if beside.is_file() else None


def as_json(result: Result) -> str:
    """{"finish_ns": {"0": ..., "1": ...}}"""
    return json.dumps({"finish_ns": {str(rank): time_ns for rank, time_ns in enumerate(result.finish_ns)}})


def as_table(result: Result, backend: str) -> str:
    """Equal times of neighbouring ranks on one line."""
    times_ns = result.finish_ns
    lines = [
        f"ASTRA-sim's semantics, {backend}, {len(times_ns)} NPUs ({result.way})",
        f"{'rank':>13} {'finish ns':>20}",
    ]
    start = 0
    for rank in range(1, len(times_ns) + 1):
        if rank == len(times_ns) or times_ns[rank] != times_ns[start]:
            name = str(start) if rank == start + 1 else f"{start}-{rank - 1}"
            lines.append(f"{name:>13} {times_ns[start]:>20,}")
            start = rank
    return "\n".join([*lines, f"{'last':>13} {max(times_ns):>20,}"])
