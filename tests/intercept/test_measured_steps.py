"""Whole training steps against those measured on one H200 (torch 2.11): operators launched, peak memory."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from test_kernels import pytestmark as kernels_mark
from test_kernels import run

SHARED = Path(__file__).parents[2].parent / "shared"
BENCH = SHARED / "workloads" / "train_bench.py"
REFERENCE = SHARED / "reference" / "h200"

pytestmark = [*kernels_mark, pytest.mark.skipif(not BENCH.exists(), reason=f"needs {BENCH}")]

# Operators that the profile counts under other names, twice, or on the CPU; and what newer releases of torch and
# transformers do otherwise.
IGNORED = frozenset(
    """aten::_local_scalar_dense aten::arange aten::gather aten::index_select aten::fill_ aten::zero_ aten::copy_
    aten::addmm aten::pow aten::bmm aten::cat aten::scatter_ memcpy_h2d memcpy_d2h memcpy_d2d aten::mul""".split()
)
RENAMED = {
    "aten::cudnn_convolution": "aten::convolution",
    "aten::_cudnn_attention_forward": "aten::_scaled_dot_product_cudnn_attention",
    "aten::_cudnn_attention_backward": "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::clamp_min": "aten::relu",
}
CASES = ("resnet50-b64-fp32", "gat-100k-nodes", "gpt2-124m-b8-s1024", "llama-1b-b2-s4096")


def profiled(case: str) -> Counter[str]:
    """Operators with device time in one profiled step."""
    counts: Counter[str] = Counter()
    for row in json.loads((REFERENCE / "profiles" / f"{case}.ops.json").read_text()):
        if row["op"].startswith("aten::") and row["device_us"] > 0:
            counts[RENAMED.get(row["op"], row["op"])] += row["count"]
    return counts


def measured_peak_mib(case: str) -> float:
    rows: list[dict[str, Any]] = [json.loads(line) for line in (REFERENCE / "models.jsonl").read_text().splitlines()]
    return next(row["max_allocated_mib"] for row in rows if row["case"] == case)


@pytest.mark.parametrize("case", CASES)
def test_step(case: str) -> None:
    needed = "torch_geometric" if case.startswith("gat") else "transformers"
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    answer = json.loads(run("measured_steps", str(BENCH), case).splitlines()[-1])
    assert answer["peak_mib"] == pytest.approx(measured_peak_mib(case), rel=0.001)
    ours, theirs = Counter(answer["launches"]), profiled(case)
    differing = {op: (theirs[op], ours[op]) for op in theirs | ours if theirs[op] != ours[op] and op not in IGNORED}
    assert not differing
