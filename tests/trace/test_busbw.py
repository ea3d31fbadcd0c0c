"""Bus bandwidth as nccl-tests defines it."""

import pytest

from phantora.trace.busbw import busbw_bytes_per_s, busbw_factor

FACTORS_OF_EIGHT = {
    "all_reduce": 1.75,
    "all_gather": 0.875,
    "reduce_scatter": 0.875,
    "all_to_all": 0.875,
    "broadcast": 1,
    "send_recv": 1,
    "barrier": 0,
}


def test_factors_of_eight_ranks():
    assert {kind: busbw_factor(kind, 8) for kind in FACTORS_OF_EIGHT} == FACTORS_OF_EIGHT


def test_rate():
    assert busbw_bytes_per_s("all_reduce", 8, 1 << 30, 4_926_513) == pytest.approx(381e9, rel=2e-3)
    assert busbw_bytes_per_s("all_reduce", 1, 1 << 30, 10) == 0
    assert busbw_bytes_per_s("all_reduce", 8, 1 << 30, 0) == 0
