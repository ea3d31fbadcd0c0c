"""From files to finish times: reads everything, and chooses the fastest simulation that gives ASTRA-sim's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.astra.clock import Clock
from phantora.astra.config import (
    Groups,
    Memory,
    load_groups,
    load_memory,
    load_network,
    load_system,
)
from phantora.astra.engine import Engine
from phantora.astra.network import (
    AwareNetwork,
    Network,
    Shape,
    UnawareNetwork,
    check_aware,
)
from phantora.astra.plan import Planner
from phantora.astra.program import Compiler, Program
from phantora.astra.together import Cohort, WholesEngine, is_cohort
from phantora.astra.whole import Contended, Wholes
from phantora.errors import UserError
from phantora.importers.chakra_file import check_ranks, find_chakra, read_files

EVERY_MESSAGE, WHOLES, COHORT = "every message", "collectives as wholes", "one NPU for all"
WAYS = (COHORT, WHOLES, EVERY_MESSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The files and options of one simulation, as ASTRA-sim takes them."""

    workload: Path
    """PREFIX of PREFIX.RANK.et, a folder of such files, or the folder of a recorded run"""
    system: Path
    network: Path
    memory: Path
    groups: Path | None = None
    is_aware: bool = False
    num_queues_per_dim: int = 1
    injection_scale: float = 1.0
    rendezvous: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be simulated, read and checked."""

    programs: Sequence[Program]
    planner: Planner
    memory: Memory
    network: type[Network]
    rendezvous: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """`finish_ns` per rank, and in which of `WAYS` it was found."""

    finish_ns: list[int]
    way: str


def load(inputs: Inputs) -> Job:
    """Reads all files. UserError: whatever is wrong with one of them."""
    dims = load_network(inputs.network)
    if inputs.is_aware:
        check_aware(dims)
    shape = Shape(dims)
    system = load_system(inputs.system, len(dims), inputs.injection_scale)
    memory = load_memory(inputs.memory, shape.num_npus)
    groups: Groups = load_groups(inputs.groups, shape.num_npus) if inputs.groups else {}
    found = find_chakra(inputs.workload)
    files = read_files([found[rank] for rank in check_ranks(inputs.workload, found, shape.num_npus)])
    compiler = Compiler(system)
    programs = [compiler.program(file) for file in files]
    planner = Planner(system, shape, groups, inputs.num_queues_per_dim)
    return Job(programs, planner, memory, AwareNetwork if inputs.is_aware else UnawareNetwork, inputs.rendezvous)


def simulate(job: Job, ways: Sequence[str] = WAYS) -> Result:
    """The first of `ways` that can tell. UserError: a deadlock, or a node that cannot be executed."""
    wholes = Wholes(job.planner, job.network, job.rendezvous)
    if job.planner.system.custom or job.planner.system.custom_nodes:
        ways = [way for way in ways if way == EVERY_MESSAGE]
    try:
        if COHORT in ways and is_cohort(job.programs, wholes, job.memory):
            return Result(Cohort(job.programs[0], wholes, job.memory).run(), COHORT)
        if WHOLES in ways:
            return Result(WholesEngine(job.programs, wholes, job.memory, job.rendezvous).run(), WHOLES)
    except Contended:
        pass
    if EVERY_MESSAGE not in ways:
        raise UserError("this workload needs every message to be simulated")
    network = job.network(Clock(), job.planner.shape, job.rendezvous)
    return Result(Engine(job.programs, job.planner, network, job.memory).run(), EVERY_MESSAGE)
