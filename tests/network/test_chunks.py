"""Chunks as NCCL takes them, and what filling a pipeline with them costs."""

from __future__ import annotations

import pytest

from phantora.network.chunks import (
    Fill, nvls_chunk_bytes, nvls_tree_chunk_bytes, tree_chunk_rule, wide_nvls_tree_chunk_bytes,
)  # fmt: skip

MIB = 2**20


@pytest.mark.parametrize(
    ("num_bytes", "chunk"), [(MIB, 16_384), (8 * MIB, 32_768), (64 * MIB, 65_536), (1024 * MIB, 131_072)]
)
def test_nvls_on_eight_gpus(num_bytes: int, chunk: int) -> None:
    assert nvls_chunk_bytes(num_bytes, 16 * 8) == chunk
    assert nvls_chunk_bytes(num_bytes - 1, 16 * 8) == max(16_384, chunk // 2)


def test_trees() -> None:
    assert nvls_tree_chunk_bytes(128 * MIB, 128) == 131_072
    assert wide_nvls_tree_chunk_bytes(128 * MIB, 128) == 65_536
    assert tree_chunk_rule(8)(2048 * MIB, 8) == 524_288
    assert tree_chunk_rule(8)(MIB, 8) == 32_768


def test_fill_never_costs_more_than_the_message() -> None:
    fill = Fill(rule=nvls_chunk_bytes, num_concurrent=128, ns_per_byte=2.0)
    assert fill.fill_ns(0) == 0
    assert fill.fill_ns(1000) == 2000
    assert fill.fill_ns(64 * MIB) == 128 * 65_536 * 2.0
