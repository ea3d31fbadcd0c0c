"""Prices of fused kernels (families/fused.py)."""

from __future__ import annotations

import pytest

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families import describe
from phantora.compute.pricer import Pricer, pricer_of

FACTS = {
    "kind": "pointwise", "rows": 1 << 20, "columns": 1, "plain": 1, "special": 0, "heavy": 0, "random": 0,
    "atomic": False, "bytes": 8 << 20, "growth_percent": 100,
}  # fmt: skip


def fused(**facts: object) -> OpCall:
    output = TensorSpec((1 << 20,), (1,), "float32")
    args = tuple({**FACTS, **facts}.items())
    return OpCall(name="fused::triton_poi_fused_add_0", args=args, outputs=(output,))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pricer() -> Pricer:
    return pricer_of("lab-h200")


def ns(pricer: Pricer, **facts: object) -> int:
    return pricer.price(fused(**facts)).duration_ns


def test_traffic_at_the_streaming_rate(pricer: Pricer) -> None:
    """1 GB more at 4.39 TB/s (91.5 % of an H200's 4.8)."""
    more = ns(pricer, bytes=2 << 30) - ns(pricer, bytes=1 << 30)
    assert more == pytest.approx((1 << 30) / (0.915 * 4.8e3), rel=0.01)


def test_what_was_measured_of_a_compiled_gpt2(pricer: Pricer) -> None:
    """us on an H200 between the profiler's time stamps, which leave out the gap of 0.7 us (profiles of the shared
    cases)."""
    elements, rows = 8192 * 3072, 8192
    gelu = dict(rows=elements, bytes=2 * 2 * elements, plain=11, heavy=1)
    gelu_backward = dict(rows=elements, bytes=3 * 2 * elements, plain=25, heavy=1)
    online_softmax = dict(kind="looped", rows=rows, columns=50257, bytes=2 * rows * 50257, plain=9, special=2)
    for facts, us in ((gelu, 35.0), (gelu_backward, 44.1), (online_softmax, 687.8)):
        assert ns(pricer, **facts) / 1e3 - 0.7 == pytest.approx(us, rel=0.1)


def test_a_reduction_pays_for_instructions_beside_its_traffic(pricer: Pricer) -> None:
    facts = dict(rows=8192, columns=1024, bytes=64 << 20, plain=20)
    assert ns(pricer, kind="persistent", **facts) > ns(pricer, **facts)
    assert ns(pricer, kind="persistent", **{**facts, "columns": 1025}) > 1.1 * ns(pricer, kind="looped", **facts)


def test_a_price_says_what_it_is(pricer: Pricer) -> None:
    price = pricer.price(fused())
    assert (price.family, price.num_kernels, price.bytes) == ("fused", 1, 8 << 20)
    assert price.source != "measured"
    assert describe(fused())[0].curves == ("fused/pointwise",)


def test_a_symbolic_size_scales_the_work() -> None:
    assert describe(fused(growth_percent=300))[0].at[1] == 3 * describe(fused())[0].at[1]
