"""Max-min fairness: the worked example, its defining properties, and a brute-force solver in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from phantora.network.fair_share import make_rows, solve

TOLERANCE = 1e-9

System = tuple[list[int], list[dict[int, int]]]


def rates_of(system: System) -> list[float]:
    capacities, rows = system
    links = [np.array(list(row), dtype=np.int64) for row in rows]
    usages = [np.array(list(row.values()), dtype=np.float64) for row in rows]
    return list(solve(make_rows(links, usages), np.array(capacities, dtype=np.float64)))


@st.composite
def systems(draw: st.DrawFn) -> System:
    capacities = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=7))
    link = st.integers(0, len(capacities) - 1)
    row = st.dictionaries(link, st.integers(1, 5), min_size=1, max_size=len(capacities))
    return capacities, draw(st.lists(row, min_size=1, max_size=9))


def brute_force(system: System) -> list[Fraction]:
    """Textbook progressive filling, one global minimum at a time, in exact arithmetic."""
    capacities, rows = system
    left = [Fraction(capacity) for capacity in capacities]
    rates: dict[int, Fraction] = {}
    while len(rates) < len(rows):
        active = [f for f in range(len(rows)) if f not in rates]
        load = {l: sum(rows[f].get(l, 0) for f in active) for l in range(len(left))}
        share, tightest = min((left[l] / load[l], l) for l in load if load[l])
        for f in [f for f in active if tightest in rows[f]]:
            rates[f] = share
            for l, usage in rows[f].items():
                left[l] -= share * usage
    return [rates[f] for f in range(len(rows))]


def test_worked_example() -> None:
    # A: f + g <= 10, B: g + 3 h <= 4
    assert rates_of(([10, 4], [{0: 1}, {0: 1, 1: 1}, {1: 3}])) == [9.0, 1.0, 1.0]


def test_one_row_gets_its_narrowest_link() -> None:
    assert rates_of(([10, 3, 8], [{0: 1, 1: 1, 2: 1}])) == [3.0]


def test_usage_counts_as_that_many_flows() -> None:
    # one link of 12: a row of two flows and a row of one flow give each flow 4
    assert rates_of(([12], [{0: 2}, {0: 1}])) == [4.0, 4.0]


@given(systems())
@settings(max_examples=200, deadline=None)
def test_agrees_with_brute_force(system: System) -> None:
    np.testing.assert_allclose(rates_of(system), [float(rate) for rate in brute_force(system)], rtol=TOLERANCE)


@given(systems())
@settings(max_examples=200, deadline=None)
def test_feasible_and_every_row_has_a_bottleneck(system: System) -> None:
    capacities, rows = system
    rates = rates_of(system)
    load = [sum(rate * row.get(l, 0) for rate, row in zip(rates, rows)) for l in range(len(capacities))]
    assert all(used <= capacity * (1 + TOLERANCE) for used, capacity in zip(load, capacities))
    for rate, row in zip(rates, rows):
        assert any(
            load[l] >= capacities[l] * (1 - TOLERANCE)
            and all(rate >= other * (1 - TOLERANCE) for other, peer in zip(rates, rows) if l in peer)
            for l in row
        )


@given(systems(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_order_of_rows_does_not_matter(system: System, random: object) -> None:
    capacities, rows = system
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = rates_of((capacities, [rows[f] for f in order]))
    np.testing.assert_allclose(shuffled, [rates_of(system)[f] for f in order], rtol=TOLERANCE)


@given(systems(), st.integers(2, 4))
@settings(max_examples=100, deadline=None)
def test_identical_paths_may_be_one_row_with_a_count(system: System, count: int) -> None:
    capacities, rows = system
    split = rates_of((capacities, [rows[0]] * count + rows[1:]))
    merged = rates_of((capacities, [{l: usage * count for l, usage in rows[0].items()}] + rows[1:]))
    np.testing.assert_allclose(split[count - 1 :], merged, rtol=TOLERANCE)
