"""The clock under a power limit, against what an H200 did (validation/data/h200/clocks.json) and against reason."""

from __future__ import annotations

import pytest

from phantora.compute.power import GpuPower
from phantora.engine.clock_governor import ClockGovernor

H200 = GpuPower(limit_w=700 * 1.015, idle_w=120.0, exponent=1.4)
PRODUCT = (0.0, 860.0, 1.0, 0.9)  # 8192^3, bf16: 1,359 us on a rested GPU
ADD = (292.0, 126.0, 0.0, 1.0)
PRODUCT_NS, ADD_NS = 1_359_000, 185_000


def settled_clock(governor: ClockGovernor, *launches: tuple[tuple[float, ...], int], host_gap_ns: int = 0) -> float:
    host_ns = 0
    for _ in range(3000):
        for draw, ns in launches:
            governor.duration_ns(draw, ns, host_ns)
            host_ns += host_gap_ns
    return governor.clock


def test_products_alone_settle_where_an_h200_does() -> None:
    """1,515 of 1,980 MHz measured."""
    assert settled_clock(ClockGovernor(H200), (PRODUCT, PRODUCT_NS)) == pytest.approx(1515 / 1980, abs=0.01)


def test_streaming_between_products_raises_the_clock() -> None:
    """37 % of the time streaming: 1,705 MHz measured; 12 %: 1,567."""
    mixed = settled_clock(ClockGovernor(H200), (PRODUCT, 2 * PRODUCT_NS), *[(ADD, ADD_NS)] * 9)
    assert mixed == pytest.approx(1705 / 1980, abs=0.02)
    little = settled_clock(ClockGovernor(H200), (PRODUCT, 2 * PRODUCT_NS), *[(ADD, ADD_NS)] * 2)
    assert little == pytest.approx(1567 / 1980, abs=0.02)


def test_streaming_alone_keeps_the_full_clock() -> None:
    assert settled_clock(ClockGovernor(H200), (ADD, ADD_NS)) == 1.0


def test_the_first_products_after_a_rest_are_not_slowed() -> None:
    """Measured: 40 ms."""
    governor = ClockGovernor(H200)
    begin = [governor.duration_ns(PRODUCT, PRODUCT_NS, 0) for _ in range(19)]
    assert set(begin) == {PRODUCT_NS}
    later = [governor.duration_ns(PRODUCT, PRODUCT_NS, 0) for _ in range(100)]
    assert later[-1] == pytest.approx(1_604_000, rel=0.01)  # measured, settled


def test_an_idle_gpu_cools_down() -> None:
    """A host that launches a product each 4 ms leaves the GPU idle for most of the time."""
    assert settled_clock(ClockGovernor(H200), (PRODUCT, PRODUCT_NS), host_gap_ns=4_000_000) == 1.0


def test_memory_bound_kernels_take_as_long_at_any_clock() -> None:
    governor = ClockGovernor(GpuPower(limit_w=300, idle_w=120.0, exponent=1.4))
    settled_clock(governor, (PRODUCT, PRODUCT_NS))
    assert governor.clock < 0.6
    assert governor.duration_ns(ADD, ADD_NS, 0) == ADD_NS
    assert governor.duration_ns((), 1000, 0) == 1000


def test_a_lower_limit_never_makes_anything_faster() -> None:
    clocks = [settled_clock(ClockGovernor(GpuPower(limit_w=w, idle_w=120.0, exponent=1.4)), (PRODUCT, PRODUCT_NS)) for w in range(200, 1100, 50)]
    assert clocks == sorted(clocks) and clocks[0] >= 0.3 and clocks[-1] == 1.0
