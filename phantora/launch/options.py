"""What one job is: the script, its ranks, and how they are simulated. Travels to the rank processes as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = -1  # stands for the user's own launcher where a rank stands else


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Everything that `phantora record-and-simulate` was asked for, checked."""

    script: str
    """Path of the script, or name of the module."""
    script_args: tuple[str, ...] = ()
    is_module: bool = False
    nnodes: int = 1
    nproc_per_node: int = 1
    cluster: str = "dgx-h100"
    """Preset name or path of a TOML file."""
    out: str = ""
    """Directory of the run."""
    log_dir: str = ""
    """Directory of the ranks' output."""
    ranks_on_terminal: str = "0"
    """'0', 'all', 'none', or a comma-separated list."""
    host_time: str = "modelled"
    """'modelled' or 'measured'."""
    prices: str = ""
    """A table of `phantora calibrate` instead of the shipped one (absolute path), '' for the latter."""
    price_table: str = ""
    """What was measured in that table, for the report."""
    contention: tuple[float, float] | None = None
    """How many times slower kernels beside a collective and a collective beside kernels are; None: not at all."""
    moe_routing: str = "balanced"
    """How routers of unknown scores spread tokens over experts: as intercept.moe_routing.parse takes it (a file: absolute path)."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once, before the ranks are forked."""
    chakra: bool = True
    perfetto: bool = True
    perfetto_ranks: tuple[int, ...] | None = None
    perfetto_launches: bool = True
    """Draw a slice for each launch in trace.pftrace."""
    launch_command: tuple[str, ...] = ()
    """The user's own launcher, which starts the ranks; then script is empty and the world is what the first rank says."""
    command: tuple[str, ...] = field(default=())
    """The command line, for the report."""

    def __post_init__(self) -> None:
        if self.nnodes < 1 or self.nproc_per_node < 1:
            raise ValueError("nnodes and nproc_per_node must be at least 1")
        if self.host_time not in ("modelled", "measured"):
            raise ValueError(f"host_time must be modelled or measured, not {self.host_time!r}")

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    def with_world(self, world_size: int, nproc_per_node: int) -> JobOptions:
        """The same job on so many ranks. ValueError when the last node would not be full."""
        if nproc_per_node < 1 or world_size % nproc_per_node:
            raise ValueError(f"{world_size} ranks are not a whole number of nodes of {nproc_per_node}")
        return dataclasses.replace(self, nnodes=world_size // nproc_per_node, nproc_per_node=nproc_per_node)

    def shown_ranks(self) -> frozenset[int]:
        """The ranks whose output appears on the terminal."""
        if self.launch_command:
            return frozenset((COMMAND,))
        if self.ranks_on_terminal == "all":
            return frozenset(range(self.world_size))
        if self.ranks_on_terminal == "none":
            return frozenset()
        return frozenset(int(number) for number in self.ranks_on_terminal.split(","))

    def rank_log(self, rank: int, stream: str) -> Path:
        """Where the output of a rank (or COMMAND) goes; stream is 'stdout', 'stderr' or 'stacks'."""
        return Path(self.log_dir) / ("command" if rank == COMMAND else f"rank_{rank}") / f"{stream}.log"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobOptions:
        fields = json.loads(text)
        for name in ("script_args", "launch_command", "command", "perfetto_ranks", "contention", "preload"):
            if fields[name] is not None:
                fields[name] = tuple(fields[name])
        return cls(**fields)
