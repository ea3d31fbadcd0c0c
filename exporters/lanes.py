"""Lanes: rows of a picture on which slices lie side by side or nest, and never overlap half."""

from __future__ import annotations

import heapq

import numpy as np


def disjoint_lanes(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Lane of each slice (0, 1, ...; slices sorted by start), so that the slices of a lane do not overlap.

    Work of one stream never overlaps, so this is lane 0 for all unless a trace from elsewhere says otherwise.
    """
    lanes = np.zeros(len(start_ns), np.int64)
    if not np.any(start_ns[1:] < np.maximum.accumulate(end_ns)[:-1]):
        return lanes
    free_since: list[tuple[int, int]] = []  # (end of the lane's last slice, lane)
    for i, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist())):
        lane = heapq.heappop(free_since)[1] if free_since and free_since[0][0] <= start else len(free_since)
        lanes[i] = lane
        heapq.heappush(free_since, (end, lane))
    return lanes


def nesting_lanes(spans: list[tuple[int, int, str, str]]) -> list[list[tuple[int, int, str, str]]]:
    """Spread spans (begin_ns, end_ns, name, category) over lanes in which each pair nests or is disjoint.

    The spans of one host thread nest; those of two threads that wait at the same time may not.
    """
    lanes: list[list[tuple[int, int, str, str]]] = []
    open_ends: list[list[int]] = []
    for span in sorted(spans, key=lambda s: (s[0], -s[1])):
        for lane, ends in zip(lanes, open_ends):
            while ends and ends[-1] <= span[0]:
                ends.pop()
            if not ends or span[1] <= ends[-1]:
                break
        else:
            lane, ends = [], []
            lanes.append(lane)
            open_ends.append(ends)
        lane.append(span)
        ends.append(span[1])
    return lanes
