"""A kernel in a training step beside the same kernel in a benchmark."""

from __future__ import annotations

import pytest
from compute_calls import call, contiguous, mm, pointwise

from phantora.cluster import load_cluster
from phantora.compute import OpCall, Pricer
from phantora.compute.roof import KERNEL_GAP_NS, STEP_GAP_NS

BF16, F32 = "bfloat16", "float32"
GAP_NS = STEP_GAP_NS - KERNEL_GAP_NS


def longer_ns(pricer: Pricer, op: OpCall) -> float:
    """What `op` takes longer in a step than in a benchmark, its longer gaps apart."""
    price = pricer.price(op)
    return price.duration_ns - price.num_kernels * GAP_NS - pricer.repeated_ns(op)


def test_what_a_step_reads_is_partly_warm(h200: Pricer) -> None:
    """A benchmark on cold inputs is slower than the same operator in a step, by at most a sixth of L2."""
    x = contiguous((8, 1024, 768), F32)
    saved_ns = -longer_ns(h200, pointwise("add", x, x, x))
    assert 0 < saved_ns < (50 << 20) / 6 / 4.392 + 1


def test_fills_and_casts_are_as_in_a_benchmark(h200: Pricer) -> None:
    x, half = contiguous((8, 1024, 768), F32), contiguous((8, 1024, 768), BF16)
    assert longer_ns(h200, pointwise("zero_", x)) == pytest.approx(0, abs=1)
    assert longer_ns(h200, pointwise("_to_copy", half, x)) == pytest.approx(0, abs=1)


def test_each_kernel_of_a_step_brings_a_longer_gap(h200: Pricer) -> None:
    x = contiguous((64,), F32)
    tiny = h200.price(pointwise("zero_", x))
    assert tiny.num_kernels == 1
    assert tiny.duration_ns == pytest.approx(h200.repeated_ns(pointwise("zero_", x)) + GAP_NS, abs=1)


def test_the_power_limit_lengthens_instructions_not_traffic(h200: Pricer) -> None:
    x, row = contiguous((64, 1024, 1024), BF16), contiguous((1024,), BF16)
    broadcast = pointwise("mul", x, x, row)
    assert 0.03 < longer_ns(h200, broadcast) / h200.repeated_ns(broadcast) < 0.1
    assert longer_ns(h200, pointwise("mul", x, x, x)) < 0


def test_only_long_products_meet_the_power_limit(h200: Pricer) -> None:
    assert longer_ns(h200, mm(1024, 1024, 1024)) == pytest.approx(0, abs=1)
    middle = mm(8192, 4096, 4096)  # 345 us
    assert 0.02 < longer_ns(h200, middle) / h200.repeated_ns(middle) < 0.05


def test_products_of_an_a100_lose_as_much_and_those_of_other_chips_nothing(a100: Pricer) -> None:
    found = load_cluster("rtx3090-ethernet")
    assert longer_ns(Pricer(found.gpu, found.host), mm(8192, 4096, 4096)) <= 0
    middle = mm(4096, 4096, 2048)  # 290 us
    assert 0.02 < longer_ns(a100, middle) / a100.repeated_ns(middle) < 0.05


def test_sums_over_rows_take_longer_between_other_kernels(h200: Pricer) -> None:
    """Column sums of 8,192 x 3,072 in bfloat16: 24 us in a queue of their own, 28 to 29 us in a step of GPT-2."""
    x = contiguous((8192, 3072), BF16)
    total = call("sum", contiguous((1, 3072), BF16), self=x, dim=(0,), keepdim=True)
    kernel_us = (h200.price(total).duration_ns - h200.price(total).num_kernels * STEP_GAP_NS) / 1e3
    assert kernel_us == pytest.approx(28.6, rel=0.06)
