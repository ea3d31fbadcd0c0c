"""Pointwise operators on views: what the kernel's offset calculator has to do decides the time."""

from __future__ import annotations

import pytest
from compute_calls import contiguous, pointwise

from phantora.compute import Pricer, TensorSpec
from phantora.compute.families.elementwise import coalesced_rank

BATCH, HEADS, LENGTH, SIZE = 2, 32, 4096, 128
HEADS_FIRST = (BATCH, HEADS, LENGTH, SIZE)
OF_TOKENS = (0, 2, 1, 3)  # heads as a projection leaves them: dimensions from the slowest to the fastest


def heads(dtype: str, order: tuple[int, ...] = (0, 1, 2, 3)) -> TensorSpec:
    return contiguous(HEADS_FIRST, dtype, order)


def benchmark_us(pricer: Pricer, name: str, out: TensorSpec, *operands: TensorSpec) -> float:
    return pricer.repeated_ns(pointwise(name, out, *operands)) / 1e3


def test_neighbours_that_all_operands_step_through_alike_are_one_dimension() -> None:
    dense, moved = heads("bfloat16"), heads("bfloat16", OF_TOKENS)
    cosine = contiguous((1, 1, LENGTH, SIZE), "bfloat16")
    assert coalesced_rank(dense, [dense]) == 1
    assert coalesced_rank(moved, [moved]) == 1
    assert coalesced_rank(dense, [contiguous((SIZE,), "bfloat16")]) == 2
    assert coalesced_rank(dense, [dense, cosine]) == 2
    assert coalesced_rank(dense, [moved]) == 4
    assert coalesced_rank(moved, [moved, cosine]) == 4


def test_a_sliced_operand_keeps_its_own_dimension() -> None:
    half = TensorSpec((BATCH, LENGTH, SIZE // 2), (LENGTH * SIZE, SIZE, 1), "float32")
    assert coalesced_rank(contiguous(half.shape, "float32"), [half]) == 2


@pytest.mark.parametrize(("dtype", "copied_us", "rotated_us"), [("bfloat16", 92, 102), ("float32", 114, 118)])
def test_heads_are_copied_and_rotated(h200: Pricer, dtype: str, copied_us: float, rotated_us: float) -> None:
    """2.7 and 3.0 ps an element of bfloat16, 3.4 and 3.5 of float32 (the sweep's rate on other sizes)."""
    dense, moved = heads(dtype), heads(dtype, OF_TOKENS)
    cosine = contiguous((1, 1, LENGTH, SIZE), dtype)
    assert benchmark_us(h200, "clone", dense, moved) == pytest.approx(copied_us, rel=0.05)
    assert benchmark_us(h200, "mul", moved, moved, cosine) == pytest.approx(rotated_us, rel=0.05)


def test_each_dimension_and_each_operand_costs_time(h200: Pricer) -> None:
    dense, moved = heads("bfloat16"), heads("bfloat16", OF_TOKENS)
    cosine = contiguous((1, 1, LENGTH, SIZE), "bfloat16")
    vectorised = benchmark_us(h200, "mul", dense, dense, dense)
    broadcast = benchmark_us(h200, "mul", dense, dense, cosine)
    assert vectorised < broadcast < benchmark_us(h200, "mul", moved, moved, cosine)


def test_a_cast_on_the_way_costs_more_than_a_broadcast(h200: Pricer) -> None:
    wide, narrow, row = heads("float32"), heads("bfloat16"), contiguous((SIZE,), "float32")
    assert benchmark_us(h200, "add", wide, narrow, row) > 1.2 * benchmark_us(h200, "add", wide, wide, row)


def test_views_of_unmeasured_ranks_are_priced_like_their_nearest_relatives(h200: Pricer) -> None:
    moved, cosine = heads("bfloat16", OF_TOKENS), contiguous((1, 1, LENGTH, SIZE), "bfloat16")
    two = benchmark_us(h200, "mul", moved, moved, cosine)
    three = benchmark_us(h200, "addcmul", moved, moved, cosine, cosine)
    assert two <= three * 1.1 < 2 * two
