"""Columns that other tools' traces, and older ones, leave empty, filled with what their absence means."""

from __future__ import annotations

from array import array
from copy import copy

import numpy as np

from phantora.trace.columns import as_int64
from phantora.trace.model import RankTrace


def completed(trace: RankTrace) -> RankTrace:
    """`trace` (or a copy) with a full column for everything that a replay looks at.

    Without rows and peers a wait is time that passed on the host: it takes as long again.
    """
    num_rows, num_waits = len(trace.signature), len(trace.wait_begin_ns)
    found = copy(trace)
    for name, count in (
        ("thread", num_rows),
        ("issue_ns", num_rows),
        ("wait_thread", num_waits),
        ("wait_delay_ns", num_waits),
    ):
        column = getattr(trace, name)
        if len(column) != count:
            setattr(found, name, array(column.typecode, [0]) * count)
    for name in ("wait_rows", "wait_peers"):
        if len(getattr(trace, name)) != num_waits:
            setattr(found, name, [()] * num_waits)
    if len(trace.wait_position) != num_waits:
        issued = np.maximum.accumulate(as_int64(found.issue_ns)) if num_rows else np.empty(0, np.int64)
        places = np.searchsorted(issued, as_int64(trace.wait_begin_ns), side="right")
        found.wait_position = array("q", places.astype(np.int64).tobytes())
    return found
