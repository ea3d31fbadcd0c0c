"""Recording a framework's own entry point, and counting what it communicated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from phantora.launch.job import Job
from phantora.launch.options import JobOptions
from phantora.trace.causality import violations
from phantora.trace.model import Run, SignatureInfo


def record(
    out: Path, nproc: int, script: str, *arguments: str, is_module: bool = False, command: tuple[str, ...] = (), cluster: str = "dgx-h100",
    moe_routing: str = "balanced", preload: tuple[str, ...] = (),
) -> Run:  # fmt: skip
    """The run of `script` on `nproc` ranks, or of the user's own launcher `command`; it must end well and be possible."""
    options = JobOptions(
        script=script, script_args=arguments, is_module=is_module, nproc_per_node=nproc, cluster=cluster, out=str(out),
        log_dir=str(out / "logs"), command=("test",), launch_command=command, moe_routing=moe_routing, preload=preload,
    )  # fmt: skip
    lines: list[str] = []
    result = Job(options, lambda text, stream: lines.append(text), lambda simulation: None).run()
    assert result.error is None and result.exit_code == 0, f"{result.error}\n{''.join(lines)}"
    assert violations(result.run) == []
    assert result.run.world_size == nproc
    return result.run


def communicated(run: Run, kind: str, ranks: tuple[int, ...] | None = None) -> Counter[int]:
    """bytes of a collective -> how often, of one kind and (given) one group of ranks."""
    return Counter(c.bytes for c in run.collectives if c.kind == kind and ranks in (None, c.ranks))


def volume(run: Run, kind: str, ranks: tuple[int, ...] | None = None, at_least: int = 0) -> int:
    """Bytes in all collectives of a kind and a group; those smaller than `at_least` (norms, losses, counters) are left out."""
    return sum(size * count for size, count in communicated(run, kind, ranks).items() if size >= at_least)


def peak_allocated_bytes(run: Run, rank: int = 0) -> int:
    return max(run.ranks[rank].allocated_bytes)


def launches(run: Run, rank: int = 0) -> list[SignatureInfo]:
    """What a rank launched, in the order of issue, without communication."""
    return [run.signatures[number] for number in run.ranks[rank].signature if number >= 0]


def kernels(run: Run, rank: int = 0) -> Counter[str]:
    """Name of an operator -> how often a rank launched it."""
    return Counter(signature.name for signature in launches(run, rank))
