"""From the engine's state to a `trace.model.Run`, in an order that does not depend on when messages arrived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phantora.cluster.spec import Cluster
from phantora.engine.collectives import Collective
from phantora.engine.simulation import Simulation
from phantora.engine.threads import order_threads
from phantora.trace.model import CollectiveInfo, GroupInfo, Run

if TYPE_CHECKING:
    from phantora.launch.options import JobOptions


def recorded_run(simulation: Simulation, cluster: Cluster, options: JobOptions, error: str | None) -> Run:
    """Everything recorded so far (also of a run that did not end well)."""
    run = Run(
        command=list(options.command),
        cluster=cluster,
        world_size=options.world_size,
        nproc_per_node=options.nproc_per_node,
        complete=error is None,
        error=error,
        contention=options.contention,
    )
    _number_signatures(simulation, run)
    _number_collectives(simulation, run)
    for rank in simulation.ranks:
        trace = rank.timeline.trace
        trace.host_end_ns = trace.host_end_ns or rank.timeline.clock_ns
        run.ranks.append(trace)
        for where, count in rank.stand_ins.items():
            run.stand_ins[where] = run.stand_ins.get(where, 0) + count
    entries = [order_threads(trace) for trace in run.ranks]
    for trace in run.ranks:
        trace.wait_peers = [tuple((rank, entries[rank][entry]) for rank, entry in peers) for peers in trace.wait_peers]
    remarks = {remark for rank in simulation.ranks for remark in rank.remarks}
    run.notes = sorted(remarks)
    if options.prices:
        run.notes.append(f"kernel prices come from {options.prices} ({options.price_table})")
    run.notes += clock_notes(simulation)
    if simulation.power is None and cluster.gpu.power_w:
        run.notes.append(f"{CLOCK_NOTE}how far it lowers the clock of {cluster.gpu.name} is not known; the clock stays")
    run.stand_ins = dict(sorted(run.stand_ins.items()))
    run.virtual_ns = max((max(trace.host_end_ns, max(trace.end_ns, default=0)) for trace in run.ranks), default=0)
    return run


CLOCK_NOTE = "power limit: "


def clock_notes(simulation: Simulation) -> list[str]:
    """How far the power limit lowered the clocks; nothing when it did not."""
    governors = [governor for rank in simulation.ranks for governor in rank.timeline.governors.values()]
    busy_ns = sum(governor.busy_ns for governor in governors)
    if simulation.power is None or not busy_ns:
        return []
    mean = sum(governor.mean_clock * governor.busy_ns for governor in governors) / busy_ns
    if mean > 0.995:
        return []
    short = "; not even the lowest clock keeps it" if any(governor.is_short for governor in governors) else ""
    return [
        f"{CLOCK_NOTE}GPUs ran at {mean:.0%} of their full clock in the mean of their busy time, lowered by the limit "
        f"of {simulation.power.limit_w:g} W{short}"
    ]


def _number_signatures(simulation: Simulation, run: Run) -> None:
    """Signatures by content: which rank defined one first must not show."""
    order = sorted(range(len(simulation.signatures)), key=lambda i: _signature_key(simulation.signatures[i]))
    run.signatures = [simulation.signatures[i] for i in order]
    new = {old: position for position, old in enumerate(order)}
    for rank in simulation.ranks:
        column = rank.timeline.trace.signature
        for row, signature in enumerate(column):
            if signature >= 0:
                column[row] = new[signature]


def _signature_key(s: object) -> tuple[object, ...]:
    return (s.name, str(s.inputs), str(s.outputs), s.duration_ns, s.num_kernels, s.source, s.flops, s.bytes, s.family, s.draw)  # type: ignore[attr-defined]


def _number_collectives(simulation: Simulation, run: Run) -> None:
    """Collectives by start, then by what they are; groups by name and members."""
    begun = [c for c in simulation.matcher.open.values() if c.members]
    collectives: list[Collective] = sorted(simulation.finished + begun, key=lambda c: (c.start_ns < 0, c.start_ns, c.key))
    groups = sorted({(c.key[1], c.key[0]) for c in collectives})
    run.groups = [GroupInfo(name, ranks) for name, ranks in groups]
    group_number = {group: i for i, group in enumerate(groups)}
    numbers: dict[int, list[int]] = {}
    for number, collective in enumerate(collectives):
        first = collective.members[min(collective.members)]
        run.collectives.append(
            CollectiveInfo(
                kind=collective.kind,
                group=group_number[collective.key[1], collective.key[0]],
                ranks=collective.ranks,
                bytes=max(member.part["bytes"] for member in collective.members.values()),
                dtype=first.part["dtype"],
                root=first.part.get("root") or 0,
                start_ns=collective.start_ns,
                end_ns=collective.end_ns,
                algorithm=str(collective.algorithm),
                stack=first.stack,
                split_bytes=collective.operation().split_bytes if collective.announced else None,
            )
        )
        for member in collective.members.values():
            if member.kernel is not None:
                numbers.setdefault(id(member.kernel), []).append(number)
                _name_stream(simulation, member.rank, member.kernel, collective.group)
    for collective in collectives:
        for member in collective.members.values():
            if member.kernel is not None:
                trace = simulation.ranks[member.rank].timeline.trace
                slot = -1 - trace.signature[member.kernel.row]
                trace.work_collectives[slot] = tuple(numbers[id(member.kernel)])


def _name_stream(simulation: Simulation, rank: int, kernel: object, group: str) -> None:
    stream = kernel.stream  # type: ignore[attr-defined]
    simulation.ranks[rank].timeline.trace.comm_streams.setdefault(stream.number, group)
