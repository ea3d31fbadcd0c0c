"""Reductions of real contents."""

from __future__ import annotations

import armed  # noqa: F401  (before torch: other tests of this process need simulated devices)
import pytest

torch = pytest.importorskip("torch")

from phantora.intercept.distributed import reductions  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name,expected",
    [
        ("SUM", [6, 4]),
        ("AVG", [2, 1]),
        ("PRODUCT", [6, 0]),
        ("MIN", [1, 0]),
        ("MAX", [3, 4]),
        ("BAND", [0, 0]),
        ("BOR", [3, 4]),
        ("BXOR", [0, 4]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_integers(name: str, expected: list[int], dtype: torch.dtype) -> None:
    values = [torch.tensor(row, dtype=dtype) for row in ([1, 0], [2, 4], [3, 0])]
    result = reductions.reduce(values, name)
    assert result.dtype == dtype and result.tolist() == expected


def test_negative_averages_are_cut_towards_zero() -> None:
    assert reductions.reduce([torch.tensor([-3]), torch.tensor([0])], "AVG").tolist() == [-1]


def test_booleans_as_nccl_does() -> None:
    values = [torch.tensor([True, True, False]), torch.tensor([True, False, False])]
    assert reductions.reduce(values, "SUM").tolist() == [True, True, False]
    assert reductions.reduce(values, "PRODUCT").tolist() == [True, False, False]


def test_narrow_floats_are_rounded_once() -> None:
    """256 + 1 is not a bfloat16, 256 + 1 + 1 is: added one by one in bfloat16, the ones would be lost."""
    values = [torch.tensor([v], dtype=torch.bfloat16) for v in (256.0, 1.0, 1.0)]
    assert reductions.reduce(values, "SUM").item() == 258.0


def test_order_is_that_of_the_ranks() -> None:
    values = [torch.tensor([v], dtype=torch.float32) for v in (1e8, 1.0, -1e8)]
    assert reductions.reduce(values, "SUM").item() == (torch.tensor(1e8) + 1.0 - 1e8).item()
