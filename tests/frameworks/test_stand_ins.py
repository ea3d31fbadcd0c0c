"""Packages of compiled kernels that are not installed: found inside ranks only, launched, priced, differentiable."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from recording import communicated, record

from phantora.trace.model import Run

SCRIPT = str(Path(__file__).parent / "scripts" / "stand_ins.py")
PACKAGES = ("apex", "deep_ep", "flash_attn", "transformer_engine", "triton", "xformers")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is not None for name in PACKAGES),
    reason=f"one of {', '.join(PACKAGES)} is really installed",
)


def launches(run: Run, rank: int = 0) -> Counter[str]:
    """Foreign kernels (not of torch) by name."""
    found = (run.signatures[number] for number in run.ranks[rank].signature if number >= 0)
    return Counter(
        signature.name for signature in found if "::" in signature.name and not signature.name.startswith("aten::")
    )


def test_kernels_of_attention_norms_and_optimizers(tmp_path: Path) -> None:
    run = record(tmp_path, 1, SCRIPT, "triton_kernel", "flash", "xformers", "apex")
    found = launches(run)
    assert found["triton::scale"] == 1
    assert found["flash_attn::flash_attention_forward"] == found["flash_attn::flash_attention_backward"] == 3
    assert found["flash_attn_3::flash_attention_forward"] == found["flash_attn_3::flash_attention_backward"] == 1
    assert found["multi_tensor::adam"] == found["multi_tensor::l2norm"] == 1
    foreign = [signature for signature in run.signatures if signature.name in found]
    assert all(signature.duration_ns > 0 for signature in foreign)
    scale = next(signature for signature in foreign if signature.name == "triton::scale")
    assert scale.bytes == 4 * (1 << 20) * 2 + 8 * (1 << 10) + 4 * (
        1 << 20
    )  # three arguments read, one of them written, too
    assert scale.source == "roofline"  # a guess


def test_fp8_and_expert_dispatch(tmp_path: Path) -> None:
    run = record(tmp_path, 2, SCRIPT, "transformer_engine", "deep_ep")
    found = launches(run)
    assert found["transformer_engine::fp8_gemm"] == 3 * 3  # three layers: output, two gradients
    # Delayed scaling: the largest values of input and weight of three layers forward, of three gradients backward, in 4
    # bytes each.
    assert communicated(run, "all_reduce") == {4 * 2 * 3: 1, 4 * 3: 1}
    # 256 tokens of 512 x bf16 go to the one rank that has both of their experts, and come back.
    assert communicated(run, "all_to_all")[256 * 512 * 2] == 2
    assert any(note.startswith("deep_ep:") for note in run.notes)
