"""NumPy views of the flat columns of the execution graph."""

from __future__ import annotations

from array import array

import numpy as np

from phantora.trace.model import HOST_DEVICE, RankTrace


def as_int64(column: array) -> np.ndarray:
    """The column as int64 (a view where it holds 64-bit integers: do not append while the view lives)."""
    if not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(column, dtype=np.dtype(column.typecode)).astype(np.int64, copy=False)


def finished_rows(trace: RankTrace) -> np.ndarray:
    """Rows of the device work that had run to its end, ascending (host issue order)."""
    return np.flatnonzero((as_int64(trace.start_ns) >= 0) & (as_int64(trace.end_ns) >= 0))


def device_rows(trace: RankTrace) -> np.ndarray:
    """The same without work of the CPU, which traces of other tools have among their rows."""
    rows = finished_rows(trace)
    return rows[as_int64(trace.device)[rows] != HOST_DEVICE]
