"""What a collective and the compute beside it on the same GPU do to each other: they share SMs, and HBM.

NCCL's kernel holds one SM for each channel for as long as it runs (24 of 132 on an H200, all-reduce of a large
buffer); what is left to compute is the rest. A GEMM that fills all SMs is then up to 132/108 = 1.22 times slower;
memory-bound kernels need few SMs, but NCCL's reads and writes take part of the bandwidth. The collective in turn
waits for SMs that a long-running compute kernel holds, and gets its share of HBM.

The default factors are measured (validation/data/h200x2/overlap.json: two H200s, NCCL 2.28.9, 256 MiB all-reduce
beside a loop of equal kernels, means of both runs, ranks and stream priorities); bf16 GEMM 8192: compute x 1.17,
collective x 1.89; GEMM 4096: 1.44, 1.20; element-wise add of 512 MiB: 1.18, 1.90.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from phantora.errors import UserError

Interval = tuple[int, int]
"""(start, end) in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentionModel:
    """Slowdown factors while both run."""

    compute_factor: float = 1.18
    """Compute takes that many times longer while a collective runs on its GPU."""
    collective_factor: float = 1.9
    """A collective takes that many times longer while all its GPUs are busy with compute."""

    def __post_init__(self) -> None:
        for name in ("compute_factor", "collective_factor"):
            if not getattr(self, name) >= 1:  # NaN neither
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")

    @property
    def described(self) -> str:
        """A sentence for the notes of a run."""
        return (
            f"contention: kernels x {self.compute_factor:g} while a collective runs on their GPU, "
            f"collectives x {self.collective_factor:g} when all their GPUs compute as they begin"
        )

    def compute_end_ns(self, start_ns: int, duration_ns: int, collectives: Sequence[Interval]) -> int:
        """End of a kernel that takes `duration_ns` alone, with these collectives on its GPU (any order)."""
        return _slowed_end_ns(start_ns, duration_ns, collectives, self.compute_factor)

    def collective_end_ns(self, start_ns: int, duration_ns: int, compute: Sequence[Interval]) -> int:
        """End of a collective that takes `duration_ns` alone, with these compute kernels on its GPU (any order)."""
        return _slowed_end_ns(start_ns, duration_ns, compute, self.collective_factor)

    def collective_bytes_factor(self, is_busy: bool) -> float:
        """Multiplies the bytes that a collective puts on the links when it begins beside compute: the simplest form,
        which needs no look ahead."""
        return self.collective_factor if is_busy else 1.0


NO_CONTENTION = ContentionModel(compute_factor=1.0, collective_factor=1.0)


def merge_intervals(intervals: Sequence[Interval]) -> list[Interval]:
    """The union of intervals, in order, without overlaps."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _slowed_end_ns(start_ns: int, duration_ns: int, others: Sequence[Interval], factor: float) -> int:
    """Work off `duration_ns` from start_ns on: at full speed outside `others`, 1/factor of it inside; rounded up."""
    now, left = float(start_ns), float(duration_ns)
    for begin, end in merge_intervals(others):
        if end <= now:
            continue
        alone = max(0.0, begin - now)
        if alone >= left:
            break
        now, left = now + alone, left - alone
        beside = (end - now) / factor
        if beside >= left:
            return -int(-(now + left * factor) // 1)
        now, left = float(end), left - beside
    return -int(-(now + left) // 1)


def parse_contention(text: str) -> tuple[float, float] | None:
    """(compute, collective) of --contention: 'measured', 'off' (None) or 'COMPUTE,COLLECTIVE', below 1000. UserError for
    what is none of them."""
    if text == "off":
        return None
    try:
        if text == "measured":
            model = ContentionModel()
        else:
            compute, collective = (float(factor) for factor in text.split(","))
            model = ContentionModel(compute_factor=compute, collective_factor=collective)
    except ValueError as error:
        what = error if "at least" in str(error) else "not two numbers COMPUTE,COLLECTIVE, nor measured or off"
        raise UserError(f"--contention {text}: {what}") from None
    if not max(model.compute_factor, model.collective_factor) < 1000:
        raise UserError(f"--contention {text}: factors must be below 1000")
    return model.compute_factor, model.collective_factor
