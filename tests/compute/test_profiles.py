"""Whole training steps: simulated kernel time against profiled kernel time."""

from __future__ import annotations

from pathlib import Path

import pytest
from phantora.validation.compute_profiles import compare
from phantora.validation.profile_rows import kineto_rows, ops_rows

from phantora.compute import Pricer

PARAMS = {
    "gpt2-124m-b8-s1024": 124439808,
    "gpt2-124m-b1-s256": 124439808,
    "llama-1b-b2-s4096": 1498482688,
    "llama2-7b-8layers-b2-s4096-bf16": 1881214976,
    "resnet50-b128-amp-channels-last": 25557032,
    "resnet50-b64-fp32": 25557032,
    "gat-100k-nodes": 112013,
    "dlrm-26tables-b16384": 1333437825,
}


@pytest.mark.parametrize("case", ["gpt2-124m-b8-s1024", "resnet50-b64-fp32"])
def test_steps_with_exact_calls(case: str, reference: Path, h200: Pricer) -> None:
    """Kineto traces give dtypes and strides: kernel time of the step within 4.5 %, the large families within 8 %."""
    result = compare(kineto_rows(reference / "traces" / f"{case}.kineto.json.gz", PARAMS[case]), h200)
    simulated, measured = sum(row[0] for row in result.rows), sum(row[1] for row in result.rows)
    assert simulated == pytest.approx(measured, rel=0.045)
    for family, (own, seen) in result.by_family().items():
        if seen > 0.05 * measured:
            assert own == pytest.approx(seen, rel=0.08), family


@pytest.mark.parametrize("case", PARAMS)
def test_steps_with_inferred_dtypes(case: str, reference: Path, h200: Pricer) -> None:
    result = compare(ops_rows(reference / "profiles" / f"{case}.ops.json", PARAMS[case]), h200)
    simulated, measured = sum(row[0] for row in result.rows), sum(row[1] for row in result.rows)
    assert simulated == pytest.approx(measured, rel=0.06)
    assert result.unpriced_ns < 0.02 * measured
