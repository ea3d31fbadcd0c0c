"""--moe-routing: what an imbalance of experts does to their exchanges."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from recording import record

from phantora.intercept.moe_routing import token_counts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs megatron-core (requirements/frameworks.txt)"
)
SCRIPT = str(Path(__file__).parent / "scripts" / "megatron_core.py")


def test_skewed_experts_draw_tokens_to_their_rank(tmp_path: Path) -> None:
    """4 experts on 2 ranks, 256 tokens of 256 x bf16 on each rank, 2 choices; loads 1 : 1/2 : 1/3 : 1/4."""
    arguments = ("--ep", "2", "--experts", "4", "--layers", "1", "--micro-batches", "1", "--steps", "1")
    run = record(tmp_path, 2, SCRIPT, *arguments, moe_routing="zipf:1")
    counts = token_counts([1, 1 / 2, 1 / 3, 1 / 4], 256, 2)
    assert counts == [246, 123, 82, 61]
    to_rank = tuple(256 * 2 * sum(counts[first : first + 2]) for first in (0, 2))
    there, back = (to_rank, to_rank), ((to_rank[0],) * 2, (to_rank[1],) * 2)  # [source][destination]
    splits = [c.split_bytes for c in run.collectives if c.kind == "all_to_all" and c.bytes > 4096]
    assert splits.count(there) == splits.count(back) == 2  # dispatch and combine, forward and backward
    assert any("--moe-routing" in note for note in run.notes)
