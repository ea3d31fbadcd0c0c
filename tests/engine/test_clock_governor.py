"""The clock under a power limit, against what an H200 did (validation/data/h200/clocks.json) and against reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phantora.compute.power import GpuPower
from phantora.engine.clock_governor import ClockGovernor
from phantora.engine.protocol import RECORD, Kind
from phantora.engine.timeline import RankTimeline

ROWS = json.loads((Path(__file__).resolve().parents[2] / "validation/data/h200/clocks.json").read_text())
US = {row["case"]: row["us"] for row in ROWS}


def limited(watts: float) -> GpuPower:
    return GpuPower(limit_w=watts, held_w=watts * 1.015, idle_w=120.0, exponent=1.4)


H200 = limited(700)
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


@pytest.mark.parametrize("adds", [1, 2, 4, 8, 16])
def test_mixes_take_as_long_as_on_an_h200(adds: int) -> None:
    """A product of 2,441 us on a rested GPU with `adds` streaming kernels of 92.5 us after it; 0.9: see compute/power.py."""
    governor, product = ClockGovernor(H200), (0.0, 860.0, 1.0, 0.9)
    taken_ns = 0
    for _ in range(800):
        taken_ns = governor.duration_ns(product, 2_441_000, 0) + sum(governor.duration_ns(ADD, 92_500, 0) for _ in range(adds))
    assert taken_ns / 1e3 == pytest.approx(US[f"1 mm 16384x4096x14336 + {adds} add 2^26"], rel=0.04)


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
    governor = ClockGovernor(limited(300))
    settled_clock(governor, (PRODUCT, PRODUCT_NS))
    assert governor.clock < 0.6
    assert governor.duration_ns(ADD, ADD_NS, 0) == ADD_NS


def test_work_of_unknown_power_is_left_out() -> None:
    """A copy to the host beside products: it takes what it takes, and products do not get faster by it."""
    alone, beside = ClockGovernor(H200), ClockGovernor(H200)
    for _ in range(500):
        last = alone.duration_ns(PRODUCT, PRODUCT_NS, 0)
        assert beside.duration_ns((), 4_870_000, 0) == 4_870_000
        assert beside.duration_ns(PRODUCT, PRODUCT_NS, 0) == last
    assert last > PRODUCT_NS


def test_a_lower_limit_never_makes_anything_faster() -> None:
    clocks = [settled_clock(ClockGovernor(limited(watts)), (PRODUCT, PRODUCT_NS)) for watts in range(200, 1100, 50)]
    assert clocks == sorted(clocks) and clocks[0] >= 0.17 and clocks[-1] == 1.0


def test_threads_are_judged_by_themselves() -> None:
    """Two host threads' launches arrive as the operating system ran them: their kernels take as long in any interleaving."""
    ends = []
    for order in ([0, 1] * 200, [0] * 200 + [1] * 200):
        timeline = RankTimeline(0, lambda kernel, ns: None, H200)
        timeline.durations, timeline.signatures, timeline.draws = [PRODUCT_NS, ADD_NS], [0, 1], [PRODUCT, ADD]
        for thread in order:
            timeline.process(RECORD.pack(Kind.OP, 0, thread, 0, thread, 5 + thread, 0))
        ends.append(sorted(timeline.trace.end_ns))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("rest_s", [0.1, 1, 600])
def test_no_rest_gives_more_than_a_short_one(rest_s: float) -> None:
    """40 ms at full speed were measured after 0.5 s."""
    governor, host_ns = ClockGovernor(H200), 0
    settled_clock(governor, (PRODUCT, PRODUCT_NS))
    host_ns = 10**11 + int(rest_s * 1e9)
    fast = 0
    while governor.duration_ns(PRODUCT, PRODUCT_NS, host_ns) == PRODUCT_NS:
        fast += 1
    assert 20 <= fast * PRODUCT_NS / 1e6 <= 90
