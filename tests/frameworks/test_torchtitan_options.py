"""torchtitan 0.3.0: activation checkpointing, compilation, float8, checkpoints, accumulation, and other options of a run."""

from __future__ import annotations

import importlib.util

import pytest
from recording import communicated, kernels
from titan_runs import (
    FSDP_GATHERS, FSDP_SCATTERS, LAYER, LAYERS, PARAMETERS, STEPS, assets, large, needs_torchtitan, times, titan,
)  # fmt: skip

pytestmark = needs_torchtitan

PRODUCTS = 5  # of a layer, forward: queries with keys and values, output, w1, w3, w2


@pytest.mark.parametrize(("mode", "again"), [("none", 0), ("selective", PRODUCTS // 2), ("full", PRODUCTS)])
def test_activation_checkpointing(mode: str, again: int) -> None:
    """Communication of FSDP2 does not change: the backward pass gathers anyway. Each product has two in the backward pass; the full
    mode computes all of a layer again, the selective one every second product (`SelectiveAC`), and not the attention. The head
    is not checkpointed.
    """
    run = titan(2) if mode == "selective" else titan(2, more=(f"activation-checkpoint:{mode}",))  # selective is the default
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert kernels(run)["aten::mm"] == STEPS * (LAYERS * (3 * PRODUCTS + again) + 3)
    assert kernels(run)["flex_attention::forward"] == STEPS * LAYERS * (2 if mode == "full" else 1)


def test_compiled() -> None:
    """Fewer, fused kernels; the communication of FSDP2 stays."""
    run = titan(2, more=("--compile.enable",))
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)
    assert any(signature.family == "fused" for signature in run.signatures)
    assert kernels(run).total() < kernels(titan(2)).total()


def test_checkpoint_loads_again() -> None:
    """2 ranks save parameters and two moments in fp32; the second run continues where the first one ended, so it does nothing."""
    options = ("--checkpoint.enable", "--checkpoint.interval", "1", "--dump-folder", "saved")
    titan(2, more=options)
    files = sorted((assets() / "saved/checkpoint/step-2").glob("*.distcp"))
    assert sum(f.stat().st_size for f in files) >= 3 * 4 * PARAMETERS
    again = titan.__wrapped__(2, more=options)
    assert communicated(again, "reduce_scatter")[4 * LAYER] == 0


def test_float8() -> None:
    """torchao's Float8Linear: all products of a layer, forward and backward, have scaled 8-bit operands. The head is left out."""
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    run = titan(2, config="llama3_debugmodel_float8")
    assert kernels(run)["aten::_scaled_mm"] > 0


def test_gradient_accumulation() -> None:
    """global batch 8 on 2 ranks of 2 sequences: two passes for each step. FSDP2 reshards after each, so parameters are gathered and
    gradients scattered in each of them (torchtitan does not delay it)."""
    run = titan(2, more=("--training.global-batch-size", "8"))
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, 2 * STEPS)


def test_variable_length_attention() -> None:
    """torch.nn.attention.varlen chooses FlashAttention 3 on this GPU: one launch each way for each layer, and the report says how it is
    priced."""
    run = titan(2, config="llama3_debugmodel_varlen_attn")
    backward = sum(count for name, count in kernels(run).items() if "flash_attention_backward" in name)
    assert backward == STEPS * LAYERS
    assert any("FlashAttention 3" in note for note in run.notes)
