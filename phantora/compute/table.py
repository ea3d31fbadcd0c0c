"""The measured points of one GPU and interpolation between them.

A table is a gzipped CSV. Lines that begin with '#' are 'key: value' provenance (GPU, driver, torch, date, method) and
the figures of the measured GPU; then one point a line: curve, position ('768 3072 64'), device ns, host ns, number of
kernels (0: not counted).

Not the time is interpolated but its residual, ln(measured / modelled): efficiency varies slowly where time spans five
decades. A curve's name goes from the general to the special ('rows/softmax/bfloat16'): all points below 'rows/softmax'
give a first correction, those of the curve itself a second one, so an operator that was measured at few sizes, or not
at all, still profits from its relatives. Each correction is a Gaussian process (kriging; Rasmussen and Williams 2006,
algorithm 2.1) with a Matern-3/2 covariance over the logarithms of the position: between points it is smooth, far from
all of them it fades to zero and leaves the model alone.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

DEFAULT_TABLE = Path(__file__).parent / "tables" / "h200.csv.gz"

# The model of a curve: (curve, position) -> nanoseconds on the measured GPU.
Model = Callable[[str, "tuple[int, ...]"], float]
Position = tuple[int, ...]
Point = tuple[Position, float, float, int]  # position, device ns, host ns, kernels

_RANGE = 4.0  # of the covariance, in weighted doublings
_MOST_SHARED = 900  # points that a level above the last is fitted to: what is shared is smooth, and fitting takes n^3
_FAR_COUNT = 4.0  # beyond so many doublings a point says nothing about the number of kernels


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
class Kriging:
    """How residuals of one model's curves vary; chosen by cross-validation over shapes (a shape with all its dtypes,
    layouts and directions left out at once).

    weights: doublings of each dimension in distances. spread: of the residuals that a level explains. left_to_others:
    what a level leaves to those below it. scatter: at the last level, of a measurement and of kernel choices that
    positions do not show. All three are logarithms of time.
    """

    weights: tuple[float, ...]
    spread: float = 0.4
    left_to_others: float = 0.15
    scatter: float = 0.05


@dataclass(frozen=True, slots=True)
class Correction:
    """One fitted level: `factors` weight the covariance with each of the `places` (points x dimensions, weighted)."""

    places: np.ndarray
    factors: np.ndarray
    spread: float

    def at(self, places: np.ndarray) -> np.ndarray:
        """The correction (a logarithm) at each of `places`."""
        return _covariance(places, self.places, self.spread) @ self.factors

    def distance(self, place: np.ndarray) -> float:
        """Weighted doublings from `place` to the nearest point."""
        return float(np.sqrt(((self.places - place) ** 2).sum(1).min()))


def correction(places: np.ndarray, residuals: np.ndarray, scatter: float, spread: float) -> Correction:
    """The Gaussian process through `residuals` at `places`."""
    matrix = _covariance(places, places, spread)
    matrix[np.diag_indices_from(matrix)] += scatter**2
    return Correction(places, np.linalg.solve(matrix, residuals), spread)


def _covariance(a: np.ndarray, b: np.ndarray, spread: float) -> np.ndarray:
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2.0 * a @ b.T
    scaled = np.sqrt(np.maximum(squares, 0.0)) * (math.sqrt(3.0) / _RANGE)
    return spread**2 * (1.0 + scaled) * np.exp(-scaled)


def place(at: Position, weights: tuple[float, ...]) -> np.ndarray:
    """A position as interpolation sees it: weighted doublings."""
    return np.log2(np.maximum(np.asarray(at, dtype=float), 1.0)) * np.asarray(weights[: len(at)])


@dataclass(slots=True)
class Table:
    """All points of one measured GPU; corrections are fitted when a curve is first asked for."""

    gpu: MeasuredGpu
    provenance: dict[str, str]
    points: dict[str, list[Point]]
    _exact: dict[str, dict[Position, float]] = field(default_factory=dict)
    _below: dict[str, list[str]] = field(default_factory=dict)
    _levels: dict[str, Correction] = field(default_factory=dict)
    _counted: dict[str, tuple[np.ndarray, list[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rows in self.points.items():
            self._exact[name] = {at: ns for at, ns, *_ in rows}
            for prefix in prefixes(name):
                self._below.setdefault(prefix, []).append(name)

    @property
    def described(self) -> str:
        """What was measured, when, and with which torch, as far as the provenance says."""
        torch = self.provenance.get("torch", "")
        parts = [self.gpu.name, self.provenance.get("date", ""), f"torch {torch}" if torch else ""]
        return ", ".join(part for part in parts if part)

    def exact_ns(self, name: str, at: Position) -> float | None:
        """The measured time at exactly this position of this curve."""
        return self._exact.get(name, {}).get(at)

    def residual(
        self, names: tuple[str, ...], at: Position, model: Model, kriging: Kriging
    ) -> tuple[float, float]:
        """(ln(time / model) at `at`, doublings to the nearest point, counted in the dimension that matters most) by the first of `names` that was measured.

        When none was, by the most special level that names[0] shares with measured curves; (0, inf) without any.
        """
        name = next((n for n in names if n in self.points and len(self.points[n][0][0]) == len(at)), names[0])
        levels = [p for p in prefixes(name) if p in self._below and self._dimensions(p) == len(at)]
        if not levels:
            return 0.0, math.inf
        here = place(at, kriging.weights)
        fitted = [self._level(level, model, kriging) for level in levels]
        doublings = fitted[-1].distance(here) / max(kriging.weights)
        return sum(float(level.at(here[None, :])[0]) for level in fitted), doublings

    def num_kernels(self, names: tuple[str, ...], at: Position, kriging: Kriging) -> int:
        """Kernels counted at the nearest point of the first of `names` where some were; 0 when none is near."""
        for name in names:
            if name not in self._counted:
                counted = [(p, n) for p, _, _, n in self.points.get(name, ()) if n and len(p) == len(at)]
                self._counted[name] = np.array([place(p, kriging.weights) for p, _ in counted]), [n for _, n in counted]
            places, counts = self._counted[name]
            if counts:
                distances = ((places - place(at, kriging.weights)) ** 2).sum(1)
                nearest = int(distances.argmin())
                return counts[nearest] if distances[nearest] < (_FAR_COUNT * max(kriging.weights)) ** 2 else 0
        return 0

    def _dimensions(self, prefix: str) -> int:
        return len(self.points[self._below[prefix][0]][0][0])

    def _level(self, prefix: str, model: Model, kriging: Kriging) -> Correction:
        if prefix not in self._levels:
            names = self._below[prefix]
            rows = [(name, at, ns) for name in names for at, ns, *_ in self.points[name]]
            places = np.array([place(at, kriging.weights) for _, at, _ in rows])
            residuals = np.array([math.log(ns / model(name, at)) for name, at, ns in rows])
            for upper in prefixes(prefix)[:-1]:
                residuals = residuals - self._level(upper, model, kriging).at(places)
            is_last = names == [prefix]
            scatter = kriging.scatter if is_last else kriging.left_to_others
            step = 1 if is_last else -(-len(rows) // _MOST_SHARED)
            self._levels[prefix] = correction(places[::step], residuals[::step], scatter, kriging.spread)
        return self._levels[prefix]


def prefixes(name: str) -> list[str]:
    """'a/b/c' -> ['a/b', 'a/b/c']: from the general to the special."""
    words = name.split("/")
    return ["/".join(words[: i + 1]) for i in range(1, len(words))]


def load(path: Path = DEFAULT_TABLE) -> Table:
    """Reads a table. Raises ValueError when the provenance or a line is incomplete."""
    header: dict[str, str] = {}
    points: dict[str, list[Point]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file.read().splitlines(), start=1):
            if line.startswith("#"):
                key, _, value = line[1:].partition(":")
                header[key.strip()] = value.strip()
                continue
            name, point = _point(line, f"{path}:{number}")
            points.setdefault(name, []).append(point)
    return Table(measured_gpu(header, path), header, points)


def _point(line: str, where: str) -> tuple[str, Point]:
    try:
        name, at, device_ns, host_ns, kernels = line.split(",")
        point = (tuple(map(int, at.split(" "))), float(device_ns), float(host_ns), int(kernels))
    except ValueError:
        raise ValueError(f"{where}: not curve,position,device ns,host ns,kernels: {line[:60]!r}") from None
    if not (point[1] > 0 and math.isfinite(point[1]) and "/" in name):
        raise ValueError(f"{where}: a curve's name and a time above 0 are expected: {line[:60]!r}")
    return name, point


def measured_gpu(header: dict[str, str], path: Path) -> MeasuredGpu:
    """The figures in a table's header. ValueError names what is missing."""
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
    except ValueError as error:
        raise ValueError(f"{path}: a figure of the header is no number ({error})") from None
