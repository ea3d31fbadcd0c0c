"""Prices of fused kernels (families/fused.py)."""

from __future__ import annotations

import pytest

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families import describe, fused
from phantora.compute.pricer import Pricer, pricer_of

FACTS = {
    "kind": "pointwise", "rows": 1 << 20, "columns": 1, "plain": 1, "special": 0, "heavy": 0, "random": 0, "near": 2,
    "atomic": False, "bytes": 8 << 20, "growth_percent": 100,
}  # fmt: skip


def call(**facts: object) -> OpCall:
    output = TensorSpec((1 << 20,), (1,), "float32")
    args = tuple({**FACTS, **facts}.items())
    return OpCall(name="fused::triton_poi_fused_add_0", args=args, outputs=(output,))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pricer() -> Pricer:
    return pricer_of("lab-h200")


def ns(pricer: Pricer, **facts: object) -> int:
    return round(pricer.repeated_ns(call(**facts)))


@pytest.mark.parametrize("kind", fused.KINDS)
def test_traffic_at_the_streaming_rate(pricer: Pricer, kind: str) -> None:
    """1 GB more at 4.39 TB/s (91.5 % of an H200's 4.8), or the share of it that a kind reaches."""
    more = ns(pricer, kind=kind, bytes=8 << 30) - ns(pricer, kind=kind, bytes=7 << 30)
    share = 0.87 if kind == "mixed" else 1.0
    assert more == pytest.approx((1 << 30) / (share * 0.915 * 4.8e3), rel=0.02)


def test_what_was_measured_of_a_compiled_gpt2(pricer: Pricer) -> None:
    """us on an H200 between the profiler's time stamps, which leave out the gap of 0.7 us (profiles of the shared
    cases)."""
    elements, rows = 8192 * 3072, 8192
    gelu = dict(rows=elements, bytes=2 * 2 * elements, plain=11, heavy=1)
    gelu_backward = dict(rows=elements, bytes=3 * 2 * elements, plain=25, heavy=1, near=3)
    online_softmax = dict(
        kind="looped", rows=rows, columns=50257, bytes=2 * rows * 50257, plain=9, special=2, near=1, sweeps=1, reductions=2
    )
    for facts, us, tolerance in ((gelu, 35.0, 0.1), (gelu_backward, 44.1, 0.1), (online_softmax, 687.8, 0.15)):
        assert ns(pricer, **facts) / 1e3 - 0.7 == pytest.approx(us, rel=tolerance)


def test_a_reduction_hides_less_behind_its_traffic(pricer: Pricer) -> None:
    facts = dict(rows=8192, columns=1024, bytes=64 << 20, plain=20, random=1)
    assert ns(pricer, kind="persistent", **facts) > 1.1 * ns(pricer, **facts)


def test_a_row_in_registers_is_as_long_as_the_next_power_of_two(pricer: Pricer) -> None:
    facts = dict(kind="persistent", rows=8192, bytes=1 << 20, plain=50, random=1)
    assert ns(pricer, columns=1040, **facts) > 1.6 * ns(pricer, columns=1024, **facts)


def test_rows_of_odd_length_are_loaded_element_by_element(pricer: Pricer) -> None:
    facts = dict(kind="looped", rows=8192, bytes=1 << 20, near=3, sweeps=1)
    assert ns(pricer, columns=50257, **facts) > 1.5 * ns(pricer, columns=50256, **facts)


def test_one_long_row_keeps_one_block_busy(pricer: Pricer) -> None:
    one = ns(pricer, kind="looped", rows=1, columns=1 << 20, plain=9, bytes=4 << 20, sweeps=1)
    many = ns(pricer, kind="looped", rows=1024, columns=1 << 10, plain=9, bytes=4 << 20, sweeps=1)
    assert one > 20 * many


@pytest.mark.parametrize("name", ["heavy", "random", "far_stores", "tiles"])
def test_what_a_kernel_does_beside_its_traffic_costs(pricer: Pricer, name: str) -> None:
    facts = dict(rows=1 << 24, bytes=4 << 24)
    assert ns(pricer, **facts, **{name: 2}) > 1.3 * ns(pricer, **facts)


def test_a_price_says_what_it_is(pricer: Pricer) -> None:
    price = pricer.price(call())
    assert (price.family, price.num_kernels, price.bytes) == ("fused", 1, 8 << 20)
    assert price.source != "measured"
    assert describe(call())[0].curves == ("fused/pointwise",)


def test_a_symbolic_size_scales_the_work() -> None:
    once, thrice = describe(call())[0].at, describe(call(growth_percent=300))[0].at
    assert thrice[1:3] == pytest.approx((3 * once[1], 3 * once[2]), rel=1e-6)
