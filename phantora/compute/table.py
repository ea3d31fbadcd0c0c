"""The measured points of one GPU and interpolation between them.

A table is a gzipped CSV. Lines that begin with '#' are 'key: value' provenance (GPU, driver, torch, date, method) and
the figures of the measured GPU; then one point a line: curve, position ('768 3072 64'), device ns, host ns.

Between points it is not the time that is interpolated but its residual, ln(measured / modelled): efficiency varies
slowly where time spans five decades. On a curve of one dimension the residual is linear in the logarithm of the
position; on others it is the mean of the nearest points weighted by inverse distance (Shepard 1968).
"""

from __future__ import annotations

import bisect
import gzip
import heapq
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT_TABLE = Path(__file__).parent / "tables" / "h200.csv.gz"

# The model of a curve: (curve, position) -> nanoseconds on the measured GPU.
Model = Callable[[str, "tuple[int, ...]"], float]
Position = tuple[int, ...]

_NEIGHBOURS = 8
_POWER = 3.0
_SOFTENING = 0.02


@dataclass(frozen=True, slots=True)
class MeasuredGpu:
    """The figures of the GPU that the table was measured on (fields as in cluster.spec.GpuSpec)."""

    name: str
    compute_capability: str
    num_sms: int
    memory_bytes_per_s: float
    l2_bytes: int
    peak_flops: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Curve:
    """Residuals of one curve. `weights` scale the dimensions before distances are taken."""

    exact_ns: dict[Position, float]
    logs: list[tuple[float, ...]]
    residuals: list[float]

    def residual(self, at: Position, weights: tuple[float, ...]) -> tuple[float, float]:
        """(residual at `at`, distance to the nearest point in log2 units)."""
        x = tuple(math.log2(max(v, 1)) * w for v, w in zip(at, weights))
        return self._linear(x[0]) if len(x) == 1 else self._nearest(x)

    def _linear(self, x: float) -> tuple[float, float]:
        right = bisect.bisect_left(self.logs, (x,))
        if right == 0 or right == len(self.logs):
            end = self.logs[min(right, len(self.logs) - 1)][0]
            return self.residuals[min(right, len(self.logs) - 1)], abs(x - end)
        low, high = self.logs[right - 1][0], self.logs[right][0]
        share = (x - low) / (high - low)
        value = self.residuals[right - 1] * (1 - share) + self.residuals[right] * share
        return value, min(x - low, high - x)

    def _nearest(self, x: tuple[float, ...]) -> tuple[float, float]:
        near = heapq.nsmallest(_NEIGHBOURS, zip(map(math.dist, self.logs, itertools.repeat(x)), itertools.count()))
        weights = [1.0 / (d + _SOFTENING) ** _POWER for d, _ in near]
        value = sum(w * self.residuals[i] for w, (_, i) in zip(weights, near)) / sum(weights)
        return value, near[0][0]


@dataclass(slots=True)
class Table:
    """All curves of one measured GPU; residuals are computed when a curve is first asked for."""

    gpu: MeasuredGpu
    provenance: dict[str, str]
    points: dict[str, list[tuple[Position, float, float]]]
    _curves: dict[str, Curve] = field(default_factory=dict)

    def curve(self, name: str, model: Model, weights: tuple[float, ...]) -> Curve | None:
        """The curve `name` with residuals against `model`, or None when nothing was measured for it."""
        if name not in self._curves:
            if name not in self.points:
                return None
            self._curves[name] = fit(self.points[name], lambda at: model(name, at), weights)
        return self._curves[name]


def fit(
    points: list[tuple[Position, float, float]], model: Callable[[Position], float], weights: tuple[float, ...]
) -> Curve:
    """A curve through `points` (position, device ns, host ns)."""
    rows = sorted(
        (tuple(math.log2(max(v, 1)) * w for v, w in zip(at, weights)), math.log(ns / model(at)), at, ns)
        for at, ns, _ in points
    )
    return Curve({at: ns for _, _, at, ns in rows}, [row[0] for row in rows], [row[1] for row in rows])


def load(path: Path = DEFAULT_TABLE) -> Table:
    """Reads a table. Raises ValueError when the provenance or a line is incomplete."""
    header: dict[str, str] = {}
    points: dict[str, list[tuple[Position, float, float]]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file.read().splitlines():
            if line.startswith("#"):
                key, _, value = line[1:].partition(":")
                header[key.strip()] = value.strip()
            else:
                name, at, device_ns, host_ns = line.split(",")
                point = (tuple(map(int, at.split(" "))), float(device_ns), float(host_ns))
                points.setdefault(name, []).append(point)
    return Table(_measured_gpu(header, path), header, points)


def _measured_gpu(header: dict[str, str], path: Path) -> MeasuredGpu:
    try:
        peaks = dict(pair.split("=") for pair in header["peak_flops"].split(" "))
        return MeasuredGpu(
            name=header["gpu"],
            compute_capability=header["compute_capability"],
            num_sms=int(header["num_sms"]),
            memory_bytes_per_s=float(header["memory_bytes_per_s"]),
            l2_bytes=int(header["l2_bytes"]),
            peak_flops={dtype: float(flops) for dtype, flops in peaks.items()},
        )
    except KeyError as missing:
        raise ValueError(f"{path}: the header lacks {missing}") from None
