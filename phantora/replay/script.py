"""What each host thread of a rank does, as the records that the engine takes from a live rank, cut where the thread
waits.

The engine knows events, not edges: a row that others wait for is followed by an EVENT_RECORD, one that waits is
preceded by EVENT_WAITs. Host times are the recorded ones; whoever plays the script shifts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from phantora.engine.protocol import RECORD, Kind
from phantora.trace.columns import as_int64
from phantora.trace.model import NO_STREAM, RankTrace, Run

RECORD_TYPE = np.dtype(
    [
        ("kind", "<i4"),
        ("device", "<i2"),
        ("thread", "<i2"),
        ("host_ns", "<i8"),
        ("a", "<i8"),
        ("b", "<i8"),
        ("c", "<i8"),
    ]
)
assert RECORD_TYPE.itemsize == RECORD.size


@dataclass(slots=True)
class Issue:
    """Records to issue one after another, and the rows among them."""

    records: np.ndarray
    rows: np.ndarray


@dataclass(slots=True)
class HostWait:
    """Entry `entry` of the rank's wait columns."""

    entry: int


@dataclass(slots=True)
class Gate:
    """Go on when another thread has issued `row`. This takes no virtual time: it keeps the order of things."""

    row: int


Step = Issue | HostWait | Gate


@dataclass(slots=True)
class ThreadScript:
    """One host thread of one rank."""

    number: int
    steps: list[Step] = field(default_factory=list)


def thread_scripts(run: Run, trace: RankTrace, order: np.ndarray, slots: np.ndarray) -> list[ThreadScript]:
    """The threads of a rank. order: see order.issue_order; slots: the engine's number of each row's signature."""
    return _RankScript(run, trace, order, slots).threads()


class _RankScript:
    def __init__(self, run: Run, trace: RankTrace, order: np.ndarray, slots: np.ndarray) -> None:
        self.run, self.trace, self.order, self.slots = run, trace, order, slots
        self.device, self.issue = as_int64(trace.device), np.maximum(as_int64(trace.issue_ns), 0)
        num_rows = len(self.device)
        self.thread = as_int64(trace.thread) if len(trace.thread) == num_rows else np.zeros(num_rows, np.int64)
        self.wait_thread = as_int64(trace.wait_thread)
        self.stream, dependent, dependency = self._lanes()
        by_row = np.argsort(dependent, kind="stable")
        self.dependent, self.dependency = dependent[by_row], dependency[by_row]
        self.num_parents = np.bincount(self.dependent, minlength=num_rows)
        self.is_source = np.zeros(num_rows, bool)
        self.is_source[self.dependency] = True
        self.is_source[[row for rows in trace.wait_rows for row in rows]] = True

    def threads(self) -> list[ThreadScript]:
        """In order of their numbers; the main thread is always there."""
        numbers = sorted({0, *np.unique(self.thread).tolist(), *np.unique(self.wait_thread).tolist()})
        gates = self._gates() if len(numbers) > 1 else {}
        position = np.empty(len(self.order), np.int64)  # row -> place in the order of issue
        position[self.order] = np.arange(len(self.order))
        return [ThreadScript(number, list(self._steps(number, gates, position))) for number in numbers]

    # -------------------------------------------------------------- rows without a stream

    def _lanes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(stream of each row, dependent, dependency). A row without a stream continues that of one of its parents, or
        gets a stream of its own, so that nothing is ordered but by dependencies."""
        stream = as_int64(self.trace.stream).copy()
        dependent, dependency = as_int64(self.trace.dependent), as_int64(self.trace.dependency)
        loose = stream == NO_STREAM
        if not loose.any():
            return stream, dependent, dependency
        parents: list[list[int]] = [[] for _ in range(len(stream))]
        for child, parent in zip(dependent.tolist(), dependency.tolist()):
            parents[child].append(parent)
        lane: list[int] = [0] * len(stream)
        is_loose, devices, is_last = loose.tolist(), self.device.tolist(), [False] * len(stream)
        next_lane, implied = -2, set()
        for row in self.order.tolist():
            if not is_loose[row]:
                continue
            for parent in parents[row]:
                if is_last[parent] and devices[parent] == devices[row]:
                    lane[row], is_last[parent] = lane[parent], False
                    implied.add((row, parent))
                    break
            else:
                lane[row], next_lane = next_lane, next_lane - 1
            is_last[row] = True
        stream[loose] = np.array(lane, np.int64)[loose]
        kept = [pair for pair in zip(dependent.tolist(), dependency.tolist()) if pair not in implied]
        pairs = np.array(kept, np.int64).reshape(-1, 2)
        return stream, pairs[:, 0], pairs[:, 1]

    # -------------------------------------------------------------- several threads

    def _gates(self) -> dict[int, list[int]]:
        """Row (or -1 - wait entry) -> rows of other threads that must have been issued before."""
        gates: dict[int, list[int]] = {}
        for child, parent in zip(self.dependent.tolist(), self.dependency.tolist()):
            if self.thread[child] != self.thread[parent]:
                gates.setdefault(child, []).append(parent)
        for entry, rows in enumerate(self.trace.wait_rows):
            others = [row for row in rows if self.thread[row] != self.wait_thread[entry]]
            if others:
                gates[-1 - entry] = others
        for line in self._shared_lines():
            for earlier, later in zip(line, line[1:]):
                if self.thread[earlier] != self.thread[later]:
                    gates.setdefault(later, []).append(earlier)
        return gates

    def _shared_lines(self) -> Iterator[list[int]]:
        """Rows of each stream, and of each communicator, in the order in which they ran (else in that of issue)."""
        start, end = as_int64(self.trace.start_ns), as_int64(self.trace.end_ns)
        lines: dict[tuple[int, ...], list[int]] = {}
        for row in self.order.tolist():
            lines.setdefault((0, self.device[row], self.stream[row]), []).append(row)
            for number in self.collectives_of(row)[:1]:
                lines.setdefault((1, self.run.collectives[number].group), []).append(row)
        for line in lines.values():
            ran = all(start[row] >= 0 for row in line)
            yield sorted(line, key=lambda row: (start[row], end[row], row)) if ran else line

    def collectives_of(self, row: int) -> Sequence[int]:
        number = self.trace.signature[row]
        return () if number >= 0 else self.trace.work_collectives[-1 - number]

    # -------------------------------------------------------------- steps

    def _steps(self, thread: int, gates: dict[int, list[int]], position: np.ndarray) -> Iterator[Step]:
        rows = self.order[self.thread[self.order] == thread]
        records, first = self._records(rows)
        cuts = self._cuts(thread, rows, gates, position)
        done = 0
        for at, steps in cuts:
            if at > done:
                yield Issue(records[first[done] : first[at]], rows[done:at])
                done = at
            yield from steps
        if done < len(rows):
            yield Issue(records[first[done] :], rows[done:])

    def _cuts(
        self, thread: int, rows: np.ndarray, gates: dict[int, list[int]], position: np.ndarray
    ) -> list[tuple[int, list[Step]]]:
        """(number of the thread's rows before it, steps), in order."""
        cuts: list[tuple[int, list[Step]]] = []
        places = position[rows]
        entries = np.flatnonzero(self.wait_thread == thread)
        wait_places = as_int64(self.trace.wait_position)[entries]
        for entry, at in zip(entries.tolist(), np.searchsorted(np.sort(places), wait_places).tolist()):
            cuts.append((at, [*map(Gate, gates.get(-1 - entry, ())), HostWait(entry)]))
        if gates:
            for at, row in enumerate(rows.tolist()):
                if row in gates:
                    cuts.append((at, [*map(Gate, gates[row])]))
            cuts.sort(key=lambda cut: cut[0])
        return cuts

    def _records(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Records of `rows`, and where those of each begin."""
        parents, is_source = self.num_parents[rows], self.is_source[rows]
        counts = parents + 1 + is_source
        first = np.concatenate(([0], np.cumsum(counts)))
        records = np.zeros(int(first[-1]), RECORD_TYPE)
        for name, column in (
            ("host_ns", self.issue),
            ("device", self.device),
            ("b", self.stream),
            ("thread", self.thread),
        ):
            records[name] = np.repeat(column[rows], counts)
        self._put_waits(records, rows, first[:-1], parents)
        work = first[:-1] + parents
        is_kernel = as_int64(self.trace.signature)[rows] >= 0
        records["kind"][work] = np.where(is_kernel, int(Kind.OP), int(Kind.COLLECTIVE))
        records["a"][work] = np.where(is_kernel, self.slots[rows], rows)
        records["kind"][work[is_source] + 1] = int(Kind.EVENT_RECORD)
        records["a"][work[is_source] + 1] = rows[is_source]
        return records, first

    def _put_waits(self, records: np.ndarray, rows: np.ndarray, first: np.ndarray, parents: np.ndarray) -> None:
        begin = np.searchsorted(self.dependent, rows)  # of each row's edges
        total = int(parents.sum())
        within = np.arange(total) - np.repeat(np.cumsum(parents) - parents, parents)
        places = np.repeat(first, parents) + within
        records["kind"][places] = int(Kind.EVENT_WAIT)
        records["a"][places] = self.dependency[np.repeat(begin, parents) + within]
