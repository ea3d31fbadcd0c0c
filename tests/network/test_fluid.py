"""Flows in time: hand-computed ends, conservation of bytes, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.network.fluid import FluidNetwork

GB_PER_S = 1e9  # one byte per ns


def path(*links: int) -> tuple[np.ndarray, np.ndarray]:
    return np.array(links, dtype=np.int64), np.ones(len(links))


def run(network: FluidNetwork, arrivals: list[tuple[int, int, tuple[int, ...], float]]) -> dict[int, int]:
    """Begin (time, flow, links, bytes) in order of time; flow -> end."""
    ends: dict[int, int] = {}
    pending = sorted(arrivals)
    while pending or network.next_ns() is not None:
        next_ns = network.next_ns()
        if pending and (next_ns is None or pending[0][0] < next_ns):
            now_ns, flow, links, num_bytes = pending.pop(0)
            network.begin(flow, *path(*links), num_bytes, now_ns)
            continue
        assert next_ns is not None
        ends.update(dict.fromkeys(network.advance(next_ns), next_ns))
    return ends


def test_one_flow_drains_at_the_rate_of_its_narrowest_link() -> None:
    assert run(FluidNetwork(np.array([2.0, 1.0]) * GB_PER_S), [(5, 0, (0, 1), 100.0)]) == {0: 105}


def test_an_arrival_halves_the_rate_and_a_departure_restores_it() -> None:
    # alone 0..50 (50 bytes), shared 50..150 (50 each: flow 1 ends), alone until its 200th byte
    ends = run(FluidNetwork(np.array([1.0]) * GB_PER_S), [(0, 0, (0,), 200.0), (50, 1, (0,), 50.0)])
    assert ends == {0: 250, 1: 150}


def test_ends_are_rounded_up() -> None:
    assert run(FluidNetwork(np.array([3.0]) * GB_PER_S), [(0, 0, (0,), 10.0)]) == {0: 4}


def test_only_connected_flows_are_rated_again() -> None:
    network = FluidNetwork(np.array([1.0, 1.0]) * GB_PER_S)
    network.begin(0, *path(0), 100.0, 0)
    assert network.next_ns() == 100
    network.begin(1, *path(1), 10.0, 7)
    assert network.next_ns() == 17
    assert network.rate(*path(0)) == GB_PER_S
    assert network.advance(17) == [1]
    assert network.next_ns() == 100


def test_equal_paths_share_a_class_and_end_in_order_of_bytes() -> None:
    ends = run(FluidNetwork(np.array([2.0]) * GB_PER_S), [(0, 0, (0,), 100.0), (0, 1, (0,), 300.0)])
    assert ends == {0: 100, 1: 200}


def test_usage_of_several_flows() -> None:
    network = FluidNetwork(np.array([4.0]) * GB_PER_S)
    network.begin(0, np.array([0]), np.array([3.0]), 100.0, 0)  # three flows that keep step
    network.begin(1, *path(0), 100.0, 0)
    assert network.advance(100) == [0, 1]  # one byte per ns each


FLOWS = st.lists(
    st.tuples(st.integers(0, 2000), st.sets(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 100_000)),
    min_size=1,
    max_size=14,
)


@given(FLOWS)
@settings(max_examples=80, deadline=None)
def test_bytes_are_conserved_on_every_link(flows: list[tuple[int, set[int], int]]) -> None:
    network = FluidNetwork(np.array([1.0, 2.0, 3.0, 5.0, 8.0]) * GB_PER_S)
    pending = sorted((begin, number, tuple(sorted(links)), size) for number, (begin, links, size) in enumerate(flows))
    expected, carried, now_ns, events = np.zeros(5), np.zeros(5), 0, 0
    for _, _, links, size in pending:
        expected[list(links)] += size
    while pending or network.next_ns() is not None:
        times = [t for t in (network.next_ns(), pending[0][0] if pending else None) if t is not None]
        carried += network.link_bytes_per_s() * (min(times) - now_ns) / 1e9
        now_ns, events = min(times), events + 1
        network.advance(now_ns)
        while pending and pending[0][0] == now_ns:
            _, number, links, size = pending.pop(0)
            network.begin(number, *path(*links), float(size), now_ns)
    assert (carried >= expected - 1e-3).all()
    assert (carried <= expected + 8.0 * events).all()  # an end is rounded up by less than 1 ns


@given(FLOWS)
@settings(max_examples=50, deadline=None)
def test_equal_calls_give_equal_answers(flows: list[tuple[int, set[int], int]]) -> None:
    arrivals = [(begin, i, tuple(sorted(links)), float(size)) for i, (begin, links, size) in enumerate(flows)]
    capacities = np.array([1.0, 2.0, 3.0, 5.0, 8.0]) * GB_PER_S
    first, second = run(FluidNetwork(capacities), arrivals), run(FluidNetwork(capacities), arrivals)
    assert first == second
    assert sorted(first) == list(range(len(flows)))


def test_advancing_past_an_end_is_a_broken_promise() -> None:
    network = FluidNetwork(np.array([1.0]) * GB_PER_S)
    network.begin(0, *path(0), 10.0, 0)
    with pytest.raises(AssertionError):
        network.advance(11)
