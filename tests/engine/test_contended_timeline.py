"""Kernels and collectives of one GPU that slow each other down, against hand-computed timelines and against each other."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import pytest
from harness import Harness

from phantora.cluster import load_cluster
from phantora.engine.protocol import Kind
from phantora.engine.recording import recorded_run
from phantora.engine.simulation import State
from phantora.launch.options import JobOptions
from phantora.network.contention import NO_CONTENTION, ContentionModel
from phantora.trace.causality import violations

MODEL = ContentionModel(compute_factor=1.5, collective_factor=2.0)


def finished(h: Harness) -> Harness:
    for rank in range(len(h.simulation.ranks)):
        if h.simulation.ranks[rank].state is not State.FINISHED:
            h.end(rank)
    h.simulation.finish()
    h.simulation.close()
    return h


def times(h: Harness, rank: int = 0) -> list[tuple[int, int]]:
    trace = h.simulation.ranks[rank].timeline.trace
    return list(zip(trace.start_ns, trace.end_ns))


def test_a_kernel_is_slow_only_while_the_collective_runs() -> None:
    h = Harness(2, 1000, ContentionModel(compute_factor=1.5, collective_factor=1.0))
    for rank in (0, 1):
        h.signature(rank, 0, 3000)
        h.record(rank, Kind.OP, 0, 0, 0)
        h.record(rank, Kind.OP, 10, 0, 0)
        h.collective(rank, 600, 0)
    finished(h)
    # 600 ns alone, 1000 ns beside the collective do 666.7 ns of work, 1733.3 ns are left
    assert times(h) == [(0, 3334), (3334, 6334), (600, 1600)]


def test_a_collective_is_slow_when_all_its_gpus_compute_as_it_begins() -> None:
    for busy, expected in (((0, 1), 100 + 2000), ((0,), 100 + 1000), ((), 100 + 1000)):
        h = Harness(2, 1000, ContentionModel(compute_factor=1.0, collective_factor=2.0))
        for rank in (0, 1):
            h.signature(rank, 0, 5000)
            if rank in busy:
                h.record(rank, Kind.OP, 99, 0, 0)
            h.collective(rank, 100, 0)
        assert times(finished(h))[-1] == (100, expected), busy


def test_a_kernel_that_begins_or_ends_with_the_collective_does_not_make_it_slow() -> None:
    for host_ns, duration_ns in ((100, 500), (50, 50)):
        h = Harness(2, 1000, MODEL)
        for rank in (0, 1):
            h.signature(rank, 0, duration_ns)
            h.record(rank, Kind.OP, host_ns, 0, 0)
            h.collective(rank, 100, 0)
        assert times(finished(h))[-1] == (100, 1100)


def test_a_kernel_in_front_of_the_collective_is_not_beside_it() -> None:
    h = Harness(2, 1000, MODEL)
    for rank in (0, 1):
        h.signature(rank, 0, 500)
        h.record(rank, Kind.OP, 100, 0, 1)
        h.collective(rank, 110, 0)
        h.record(rank, Kind.OP, 120, 0, 1)
    assert times(finished(h)) == [(100, 600), (600, 1600), (1600, 2100)]


def test_who_waits_gets_the_contended_time() -> None:
    h = Harness(2, 1000, ContentionModel(compute_factor=2.0, collective_factor=1.0))
    for rank in (0, 1):
        h.signature(rank, 0, 600)
        h.collective(rank, 100, 0)
        h.record(rank, Kind.OP, 100, 0, 0)
        h.record(rank, Kind.EVENT_RECORD, 110, 7, 0)
        h.record(rank, Kind.EVENT_WAIT, 120, 7, 5)
        h.record(rank, Kind.OP, 130, 0, 5)
    h.call(0, "sync", 140, what="event", event=7)
    h.call(1, "sync", 150, what="device", device=0)
    h.simulation.advance()
    # the first kernel does 500 ns of its work until 1100, then 100 more; the second runs alone
    assert [(rank, m["ns"]) for rank, m in h.replies] == [(0, 1200)]
    h.record(0, Kind.EVENT_RECORD, 5000, 8, 0)
    h.simulation.advance()
    assert [(rank, m["ns"]) for rank, m in h.replies] == [(0, 1200), (1, 1800)]
    trace = h.simulation.ranks[1].timeline.trace
    assert (list(trace.dependent), list(trace.dependency)) == ([2], [1])


def test_a_query_is_answered_for_the_asking_time() -> None:
    h = Harness(2, 1000, ContentionModel(compute_factor=2.0, collective_factor=1.0))
    for rank in (0, 1):
        h.signature(rank, 0, 600)
        h.collective(rank, 100, 0)
        h.record(rank, Kind.OP, 100, 0, 0)
        h.record(rank, Kind.EVENT_RECORD, 110, 9, 0)
    h.call(1, "sync", 110, what="device", device=0)
    for clock_ns in (800, 1199, 1200):
        h.call(0, "query", clock_ns, what="event", event=9)
        h.simulation.advance()
    assert [m["done"] for rank, m in h.replies if rank == 0] == [False, False, True]


def test_two_collectives_at_once_slow_a_kernel_once() -> None:
    h = Harness(2, 1000, MODEL)
    for rank in (0, 1):
        h.signature(rank, 0, 2000)
        h.collective(rank, 100, 0, stream=1)
        h.collective(rank, 600, 0, stream=2, ranks=(1, 0))
        h.record(rank, Kind.OP, 700, 0, 0)
    # beside collectives until 1600: 600 of 2000 ns of work done
    assert times(finished(h))[2] == (700, 1600 + 1400)


@pytest.mark.parametrize("seed", range(20))
def test_kernels_end_when_the_model_says(seed: int) -> None:
    """Against ContentionModel.compute_end_ns, given the intervals of all collectives."""
    chance = random.Random(seed)
    h = Harness(2, 700, ContentionModel(compute_factor=1.3, collective_factor=1.0))
    durations = [chance.randrange(1, 3000) for _ in range(30)]
    launches = sorted(chance.randrange(20_000) for _ in range(30))
    begins = sorted(chance.randrange(30_000) for _ in range(12))
    for rank in (0, 1):
        for number, (duration_ns, host_ns) in enumerate(zip(durations, launches)):
            h.signature(rank, number, duration_ns)
            h.record(rank, Kind.OP, host_ns, number, 0)
        for number, begin_ns in enumerate(begins):
            h.collective(rank, begin_ns, number)
    done = times(finished(h))
    collectives, end_ns = done[30:], 0
    for (start_ns, found_ns), duration_ns, host_ns in zip(done, durations, launches):
        assert start_ns == max(host_ns, end_ns)
        end_ns = h.simulation.contention.compute_end_ns(start_ns, duration_ns, collectives)
        assert abs(found_ns - end_ns) <= 1  # rounding of adjoining intervals
        end_ns = found_ns


# ------------------------------------------------------------------ random programs, delivered in any order


@dataclass
class Program:
    """What one rank does: steps of (kind, arguments), and how the rank's host clock moves between them."""

    steps: list[tuple[str, int, Any]]


def random_program(seed: int, rank: int, world_size: int) -> Program:
    """All ranks issue the same collectives in one order; kernels, events and waits differ."""
    common, own = random.Random(seed), random.Random(seed * 1000 + rank)
    steps: list[tuple[str, int, Any]] = []
    for _ in range(40):
        for _ in range(own.randrange(4)):
            kind = own.choice(("op", "op", "op", "record", "wait", "sync", "query"))
            steps.append((kind, own.randrange(300), (own.randrange(3), own.randrange(4))))
        group = common.choice(((0, 1, 2), (0, 1, 2), (0, 1), (1, 2)))
        stream = common.choice((1, 3))
        if rank in group:
            steps.append(("collective", own.randrange(300), (stream, group)))
    steps.append(("sync", 0, (0, 0)))
    return Program(steps)


class Player:
    """Delivers the programs of all ranks in an order of its own, as far as blocking calls allow."""

    def __init__(self, seed: int, model: ContentionModel | None, world_size: int = 3) -> None:
        self.h = Harness(world_size, 900, model)
        self.programs = [random_program(seed, rank, world_size).steps for rank in range(world_size)]
        self.clocks = [0] * world_size
        self.position = [0] * world_size
        self.seq: dict[Any, int] = {}
        self.waiting: set[int] = set()
        self.taken = 0
        for rank, duration_ns in itertools.product(range(world_size), range(4)):
            self.h.signature(rank, duration_ns, (0, 170, 900, 2400)[duration_ns])

    def play(self, order: random.Random) -> Harness:
        while True:
            ready = [r for r, steps in enumerate(self.programs) if self.position[r] < len(steps) and r not in self.waiting]
            if not ready:
                break
            rank = order.choice(ready)
            for _ in range(order.randrange(1, 12)):
                if rank in self.waiting or self.position[rank] == len(self.programs[rank]):
                    break
                self.deliver(rank, *self.programs[rank][self.position[rank]])
                self.position[rank] += 1
            if self.position[rank] == len(self.programs[rank]) and rank not in self.waiting:
                self.h.end(rank)
            self.advance()
        return finished(self.h)

    def deliver(self, rank: int, kind: str, delay_ns: int, what: Any) -> None:
        h = self.h
        self.clocks[rank] += 1 + delay_ns  # no two ranks' events by design at one time; some are
        host_ns = self.clocks[rank]
        if kind == "op":
            h.record(rank, Kind.OP, host_ns, what[1], what[0])
        elif kind == "record":
            h.record(rank, Kind.EVENT_RECORD, host_ns, what[1], what[0])
        elif kind == "wait":
            h.record(rank, Kind.EVENT_WAIT, host_ns, what[1], what[0])
        elif kind == "collective":
            stream, group = what
            seq = self.seq[rank, group] = self.seq.get((rank, group), -1) + 1
            h.collective(rank, host_ns, seq, stream=stream, ranks=group)
        else:
            self.waiting.add(rank)
            fields = dict(what="device", device=0) if kind == "sync" else dict(what="stream", device=0, stream=what[0])
            h.call(rank, kind, host_ns, **fields)

    def advance(self) -> None:
        while True:
            self.h.simulation.advance()
            fresh, self.taken = self.h.replies[self.taken :], len(self.h.replies)
            if not fresh:
                return
            for rank, message in fresh:
                self.waiting.discard(rank)
                self.clocks[rank] = max(self.clocks[rank], message.get("ns", 0))
                if self.position[rank] == len(self.programs[rank]):
                    self.h.end(rank)


def outcome(h: Harness) -> Any:
    traces = [rank.timeline.trace for rank in h.simulation.ranks]
    columns = [(list(t.start_ns), list(t.end_ns), list(t.issue_ns), sorted(zip(t.dependent, t.dependency))) for t in traces]
    answers = [[(m.get("ns"), m.get("done")) for r, m in h.replies if r == rank] for rank in range(len(traces))]
    return columns, answers


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_do_not_depend_on_arrival(seed: int) -> None:
    first = outcome(Player(seed, MODEL).play(random.Random(0)))
    for number in range(1, 5):
        assert outcome(Player(seed, MODEL).play(random.Random(number))) == first
    assert first != outcome(Player(seed, None).play(random.Random(0)))


@pytest.mark.parametrize("seed", range(10))
def test_factors_of_one_change_nothing(seed: int) -> None:
    without, beside = (outcome(Player(seed, model).play(random.Random(1))) for model in (None, NO_CONTENTION))
    assert beside == without


@pytest.mark.parametrize("seed", range(10))
def test_random_programs_could_have_happened(seed: int) -> None:
    h = Player(seed, MODEL).play(random.Random(2))
    run = recorded_run(h.simulation, load_cluster("dgx-h100"), JobOptions(script="x.py", nproc_per_node=3), None)
    assert violations(run) == []
    assert all(start_ns >= 0 for trace in run.ranks for start_ns in trace.start_ns)
