"""Quantities over time that are not in the trace itself but computed from it, for exporters to draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSeries:
    """values[i], in `unit`, holds from times_ns[i] (ascending) on. Counters of one rank with one `axis` share a
    scale."""

    rank: int
    name: str
    unit: str
    axis: str
    times_ns: np.ndarray
    values: np.ndarray
