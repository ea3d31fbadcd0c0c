"""A plain replay of a Run by the rules of trace.model, to see whether an import says enough to bring its times back."""

from __future__ import annotations

from phantora.trace.model import RankTrace, Run


class PlainReplay:
    """Work keeps its duration, a collective its time from the last arrival."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.ranks = {trace.rank: _Rank(trace) for trace in run.ranks}
        self.arrivals: dict[int, dict[int, int]] = {}
        self.members: dict[int, int] = {}
        for trace in run.ranks:
            for parts in trace.work_collectives:
                for part in parts:
                    self.members[part] = self.members.get(part, 0) + 1

    def run_all(self) -> int:
        """Replay; the end of the last work or host."""
        while any([self._advance(rank) for rank in self.ranks.values()]):
            pass
        unfinished = [rank.trace.rank for rank in self.ranks.values() if rank.steps]
        assert not unfinished, f"ranks {unfinished} wait for ever"
        return max(max(rank.host_end(), max(rank.ends.values(), default=0)) for rank in self.ranks.values())

    def _advance(self, rank: _Rank) -> bool:
        moved = False
        while rank.steps:
            kind, number = rank.steps[-1]
            if not (self._row(rank, number) if kind == "row" else rank.wait(number)):
                break
            rank.steps.pop()
            moved = True
        return moved

    def _row(self, rank: _Rank, row: int) -> bool:
        trace = rank.trace
        if row not in rank.starts:
            needed = [*rank.parents[row]]
            if any(parent not in rank.ends for parent in needed):
                return False
            host = rank.host_at(trace.thread[row], trace.issue_ns[row])
            rank.starts[row] = max([host] + [rank.ends[parent] for parent in needed])
        length = trace.end_ns[row] - trace.start_ns[row]
        if trace.signature[row] >= 0:
            rank.ends[row] = rank.starts[row] + length
            return True
        parts = trace.work_collectives[-1 - trace.signature[row]]
        for part in parts:
            self.arrivals.setdefault(part, {})[trace.rank] = rank.starts[row]
            if len(self.arrivals[part]) == self.members[part]:
                info = self.run.collectives[part]
                end = max(self.arrivals[part].values()) + info.end_ns - info.start_ns
                for other in self.ranks.values():
                    other.finish(part, end)
        return True  # later work on the stream waits for its end


class _Rank:
    def __init__(self, trace: RankTrace) -> None:
        self.trace = trace
        self.starts: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        self.clocks: dict[int, tuple[int, int]] = {}  # thread -> (recorded, replayed)
        self.parents: list[list[int]] = []
        last: dict[tuple[int, int], int] = {}
        for row, key in enumerate(zip(trace.device, trace.stream)):
            self.parents.append([last[key]] if key in last else [])
            last[key] = row
        for dependent, dependency in zip(trace.dependent, trace.dependency):
            self.parents[dependent].append(dependency)
        self.rows_of: dict[int, int] = {}
        for row, signature in enumerate(trace.signature):
            for part in trace.work_collectives[-1 - signature] if signature < 0 else ():
                self.rows_of[part] = row
        steps = [(row, 1, "row", row) for row in range(len(trace.signature))]
        steps += [(position, 0, "wait", number) for number, position in enumerate(trace.wait_position)]
        steps.sort(key=lambda step: step[:2])
        self.steps = [(kind, number) for _, _, kind, number in reversed(steps)]

    def host_at(self, thread: int, recorded: int) -> int:
        """Replayed time of a host event; the thread's clock is there afterwards."""
        before, replayed = self.clocks.get(thread, (recorded, recorded))
        now = replayed + recorded - before
        self.clocks[thread] = recorded, now
        return now

    def wait(self, number: int) -> bool:
        trace = self.trace
        if any(row not in self.ends for row in trace.wait_rows[number]):
            return False
        begin = self.host_at(trace.wait_thread[number], trace.wait_begin_ns[number])
        recorded_end, recorded_begin = trace.wait_end_ns[number], trace.wait_begin_ns[number]
        due = max([recorded_begin] + [trace.end_ns[row] for row in trace.wait_rows[number]])
        end = max([begin] + [self.ends[row] for row in trace.wait_rows[number]]) + max(recorded_end - due, 0)
        self.clocks[trace.wait_thread[number]] = recorded_end, end
        return True

    def finish(self, part: int, end: int) -> None:
        if part in self.rows_of:
            row = self.rows_of[part]
            self.ends[row] = max(end, self.starts[row])

    def host_end(self) -> int:
        recorded, replayed = self.clocks.get(0, (0, 0))
        return replayed + self.trace.host_end_ns - recorded
