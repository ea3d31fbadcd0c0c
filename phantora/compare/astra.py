"""A run against ASTRA-sim: its binary, or our copy of its semantics, on the traces that the run exported.

The totals are of the whole run. ASTRA-sim prints no times of single collectives, so each distinct one (kind, size,
place of its group) is run by itself, and counts as often as it is in the run.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from phantora.astra.simulate import Inputs, load, simulate
from phantora.cluster.spec import Cluster
from phantora.compare.astra_binary import check_binary, finish_times_ns, is_aware
from phantora.compare.astra_reasons import reasons
from phantora.compare.result import Comparison, Line, class_name
from phantora.errors import UserError
from phantora.exporters.astra_config import write_astra_configs
from phantora.exporters.chakra import write_chakra
from phantora.report.breakdown import rank_end_ns
from phantora.trace.model import CollectiveInfo, GroupInfo, RankTrace, Run, SignatureInfo

_NOTHING = SignatureInfo("nothing", (), (), 0, 1, "measured", 0, 0, "other")


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraSim:
    """How ASTRA-sim is run. binary: None for our copy of its semantics; is_aware: with congestion, in one dimension."""

    binary: Path | None
    is_aware: bool
    limit_s: float

    @classmethod
    def of(cls, binary: Path | None, is_congestion_aware: bool, limit_s: float) -> AstraSim:
        """UserError for a binary that cannot be run."""
        if binary is not None:
            check_binary(binary)
        return cls(binary=binary, is_aware=is_congestion_aware if binary is None else is_aware(binary), limit_s=limit_s)

    @property
    def title(self) -> str:
        """What is run."""
        network = "congestion-aware" if self.is_aware else "congestion-unaware"
        return (
            f"our copy of ASTRA-sim's semantics ({network})"
            if self.binary is None
            else f"ASTRA-sim, {self.binary} ({network})"
        )

    def finish_ns(self, traces: Path, configs: Path, num_npus: int) -> list[int]:
        """When each NPU ends; traces: folder of trace.RANK.et, configs: folder of the configurations."""
        suffix = "_1d" if self.is_aware else ""
        files = {
            "system": configs / f"system{suffix}.json", "network": configs / f"network{suffix}.yml",
            "memory": configs / "memory.json",
        }  # fmt: skip
        if self.binary is not None:
            return finish_times_ns(self.binary, traces, files, num_npus, self.limit_s)
        inputs = Inputs(
            workload=traces / "trace", system=files["system"], network=files["network"], memory=files["memory"],
            groups=traces / "comm_groups.json", is_aware=self.is_aware,
        )  # fmt: skip
        return simulate(load(inputs)).finish_ns


def compare_astra(run: Run, traces: Path, astra: AstraSim) -> Comparison:
    """traces: folder of the Chakra traces of `run`, with the configurations if they are there (they may have been
    changed).

    UserError: a run on a cluster that is not known, or of one rank; ASTRA-sim fails, or deadlocks.
    """
    if not isinstance(run.cluster, Cluster):
        raise UserError(
            "these traces do not say on which cluster they ran: only a recorded or replayed run can be compared"
        )
    if run.world_size < 2:
        raise UserError("a run of one rank has no network: ASTRA-sim needs two NPUs")
    with tempfile.TemporaryDirectory() as scratch:
        configs = traces
        if not (traces / "system_1d.json").is_file():
            configs = Path(scratch)
            write_astra_configs(run, configs)
        theirs = astra.finish_ns(traces, configs, run.world_size)
        alone = _Alone(run, astra, configs, Path(scratch))
        lines = [*_total_lines(run, theirs), *_class_lines(run, alone)]
    return Comparison(
        title=f"{' '.join(run.command)}\n{len(run.ranks)} ranks of {run.cluster.name}, against {astra.title}",
        ours="phantora", theirs="ASTRA-sim", per="run", lines=tuple(lines),
        reasons=reasons(run, astra.is_aware, astra.binary is None),
    )  # fmt: skip


def _total_lines(run: Run, theirs: list[int]) -> list[Line]:
    ours = [rank_end_ns(trace) for trace in run.ranks]
    slowest = max(range(len(ours)), key=lambda rank: (ours[rank], -rank))
    return [
        Line(section="Whole run", name="last rank ends", ours_ns=max(ours), theirs_ns=max(theirs)),
        Line(
            section="Whole run", name=f"rank {slowest}, our slowest", ours_ns=ours[slowest], theirs_ns=theirs[slowest]
        ),
        Line(
            section="Whole run",
            name="mean of all ranks",
            ours_ns=sum(ours) / len(ours),
            theirs_ns=sum(theirs) / len(theirs),
        ),
    ]


def _class_lines(run: Run, alone: _Alone) -> list[Line]:
    sums: dict[tuple[str, int, int], tuple[int, int, int]] = {}
    for info in run.collectives:
        if info.end_ns < 0 or len(dict.fromkeys(info.ranks)) < 2:
            continue
        key = (info.kind, len(info.ranks), info.bytes.bit_length())
        count, ours, theirs = sums.get(key, (0, 0, 0))
        sums[key] = (count + 1, ours + info.end_ns - info.start_ns, theirs + alone.time_ns(info))
    section = "Collectives, from the last arrival (ASTRA-sim: each alone)"
    lines = [
        Line(
            section=section, name=class_name(kind, size, 1 << bits - 1 if bits else 0), ours_ns=ours, theirs_ns=theirs,
            count=count,
        )
        for (kind, size, bits), (count, ours, theirs) in sorted(sums.items())
    ]  # fmt: skip
    total = Line(
        section=section, name="all collectives", ours_ns=sum(line.ours_ns for line in lines),
        theirs_ns=sum(line.theirs_ns for line in lines), count=sum(line.count for line in lines),
    )  # fmt: skip
    return [*lines, total] if lines else []


class _Alone:
    """Times of single collectives under ASTRA-sim, each distinct one run once."""

    def __init__(self, run: Run, astra: AstraSim, configs: Path, scratch: Path) -> None:
        self.run, self.astra, self.configs, self.scratch = run, astra, configs, scratch
        self.known: dict[tuple[object, ...], int] = {}

    def time_ns(self, info: CollectiveInfo) -> int:
        """Until its last member ends."""
        # Groups at the same places relative to their nodes cost the same.
        per_node = max(self.run.nproc_per_node, 1)
        first = info.ranks[0] - info.ranks[0] % per_node
        key = (info.kind, info.bytes, info.root, tuple(rank - first for rank in info.ranks))
        if key not in self.known:
            folder = write_chakra(self._single(info), self.scratch / f"alone_{len(self.known)}")
            finish = self.astra.finish_ns(folder, self.configs, self.run.world_size)
            self.known[key] = max(finish[rank] for rank in info.ranks)
        return self.known[key]

    def _single(self, info: CollectiveInfo) -> Run:
        """A run of this collective alone. The others do nothing, but ASTRA-sim wants a node on each rank."""
        run = Run([], self.run.cluster, self.run.world_size, self.run.nproc_per_node, signatures=[_NOTHING])
        run.groups = [GroupInfo("group", info.ranks)]
        run.collectives = [CollectiveInfo(info.kind, 0, info.ranks, info.bytes, info.dtype, info.root, 0, 1000)]
        for rank in range(self.run.world_size):
            trace, is_member = RankTrace(rank), rank in info.ranks
            values = {
                "device": 0,
                "stream": 0,
                "signature": -1 if is_member else 0,
                "issue_ns": 0,
                "thread": 0,
                "start_ns": 0,
            }
            for name, value in values.items():
                getattr(trace, name).append(value)
            trace.end_ns.append(1000 if is_member else 0)
            trace.work_collectives = [(0,)] if is_member else []
            run.ranks.append(trace)
        return run
