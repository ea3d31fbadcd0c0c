"""Rates kept up to date flow by flow are those of the whole solved anew."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.network import fluid
from phantora.network.fair_share import bottlenecks, make_rows, solve
from phantora.network.fluid import FluidNetwork
from phantora.network.local_rates import LocalRates

CAPACITIES = [7.0, 10.0, 4.0, 25.0, 13.0, 9.0, 18.0, 3.0]

PATHS = st.dictionaries(st.integers(0, 7), st.integers(1, 3), min_size=1, max_size=4)


def solved(flows: dict[int, dict[int, float]]) -> dict[int, float]:
    links = [np.array(list(weights), dtype=np.int64) for weights in flows.values()]
    usages = [np.array(list(weights.values()), dtype=np.float64) for weights in flows.values()]
    return dict(zip(flows, solve(make_rows(links, usages), np.array(CAPACITIES)).tolist()))


@given(st.lists(st.tuples(st.booleans(), PATHS, st.integers(0, 99)), min_size=1, max_size=40))
@settings(max_examples=150, deadline=None)
def test_agrees_with_the_solver_after_every_change(steps: list[tuple[bool, dict[int, int], int]]) -> None:
    local, flows = LocalRates(CAPACITIES), dict[int, dict[int, float]]()
    for number, (arrives, path, pick) in enumerate(steps):
        if arrives or not flows:
            flows[number] = {link: float(weight) for link, weight in path.items()}
            local.put(number, flows[number], 0.0)
            assert local.update([number], []) is not None
        else:
            gone = list(flows)[pick % len(flows)]
            links = flows.pop(gone)
            local.remove(gone)
            assert local.update([], links) is not None
        if flows:
            expected = solved(flows)
            np.testing.assert_allclose([local.rates[f] for f in flows], [expected[f] for f in flows], rtol=1e-9)


def test_every_row_of_a_solution_has_a_bottleneck() -> None:
    rows = make_rows([np.array([0]), np.array([0, 1]), np.array([1])], [np.ones(1), np.ones(2), np.array([3.0])])
    capacities = np.array([10.0, 4.0])
    assert bottlenecks(rows, capacities, solve(rows, capacities)).tolist() == [0, 1, 1]


def test_many_flows_end_when_the_whole_solution_says() -> None:
    """The same traffic with and without local rates: the same ends, to the rounding of additions."""
    pick = np.random.default_rng(5)
    paths = [np.sort(pick.choice(120, 4, replace=False)) for _ in range(700)]
    sizes = pick.uniform(1e6, 1e9, 700)
    ends = []
    for many in (256, 10**9):
        fluid.MANY_CLASSES, usual = many, fluid.MANY_CLASSES
        try:
            network, found = FluidNetwork(np.full(120, 1e10)), {}
            for flow in range(700):
                network.begin(flow, paths[flow], np.ones(4), sizes[flow], 0 if flow < 600 else flow * 1000)
                network.next_ns()
            while (now_ns := network.next_ns()) is not None:
                found.update(dict.fromkeys(network.advance(now_ns), now_ns))
        finally:
            fluid.MANY_CLASSES = usual
        ends.append(found)
    assert set(ends[0]) == set(range(700))
    assert max(abs(ends[0][flow] - ends[1][flow]) for flow in range(700)) <= 20
