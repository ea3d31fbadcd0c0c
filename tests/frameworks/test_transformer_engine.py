"""Megatron-Core on the stand-in for Transformer Engine: sequence and context parallelism, grouped products of experts.

Through megatron.training: a GPT of width 256, 4 layers, 8 heads of 32 (4 key groups), micro batches of 2 x 128 tokens;
one activation is 131,072 bytes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from megatron_arguments import PRETRAIN, PRETRAIN_ARGUMENTS
from recording import communicated, kernels, record

from phantora.trace.model import Run

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="needs megatron-core (requirements/frameworks.txt)"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("transformer_engine") is not None, reason="the real Transformer Engine is installed"
    ),
]
LAYERS, ACTIVATION_BYTES, BOTH = 4, 131_072, (0, 1)
STEPS = 2


@pytest.fixture(autouse=True)
def one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron wants it for tensor parallelism


def pretrain(out: Path, *arguments: str) -> Run:
    options = ("--transformer-impl", "transformer_engine", *arguments)
    return record(out, 2, PRETRAIN, *PRETRAIN_ARGUMENTS, *options)


def test_sequence_parallel(tmp_path: Path) -> None:
    """As Korthikanti et al., 2022, section 4.2.2 (see test_megatron.py); and the norms' gradients, which each rank has
    a part of."""
    run = pretrain(tmp_path, "--tensor-model-parallel-size", "2", "--sequence-parallel")
    micro_batches = STEPS * 2
    assert communicated(run, "all_gather", BOTH)[ACTIVATION_BYTES] == micro_batches * (6 * LAYERS + 3)
    assert communicated(run, "reduce_scatter", BOTH)[ACTIVATION_BYTES] == micro_batches * (4 * LAYERS + 2)
    assert communicated(run, "all_reduce", BOTH)[(2 * LAYERS + 1) * 256 * 4] == STEPS
    assert {"transformer_engine::fused_attention_forward", "multi_tensor::adam"} <= kernels(run).keys()


def test_context_parallel_passes_keys_and_values_round_a_ring(tmp_path: Path) -> None:
    """Liu et al., 2023 (Ring Attention): forward, keys and values make c - 1 hops. Backward they do again, and their
    gradients make c hops, to end where they belong; what is sent at one step travels together. With c = 2: one hop
    forward, two backward."""
    run = pretrain(tmp_path, "--context-parallel-size", "2")
    keys_and_values_bytes, micro_batches = 2 * (2 * 64 * 4 * 32) * 2, STEPS * 2
    for ranks in ((0, 1), (1, 0)):
        assert communicated(run, "send_recv", ranks) == {keys_and_values_bytes: micro_batches * LAYERS * (1 + 2)}


def test_experts_compute_in_grouped_products(tmp_path: Path) -> None:
    """Two choices of each of 256 tokens, to the expert and back, forward and backward."""
    run = pretrain(
        tmp_path,
        "--expert-model-parallel-size",
        "2",
        "--num-experts",
        "4",
        "--moe-grouped-gemm",
        "--moe-token-dispatcher-type",
        "alltoall",
        "--moe-router-topk",
        "2",
        "--moe-ffn-hidden-size",
        "344",
    )
    assert communicated(run, "all_to_all", BOTH)[2 * ACTIVATION_BYTES] == STEPS * LAYERS * 4
    launches = [
        s.name for rank in run.ranks[:1] for number in rank.signature if number >= 0 and (s := run.signatures[number])
    ]
    assert (
        launches.count("transformer_engine::grouped_gemm") == STEPS * LAYERS * 2 * 3
    )  # two matrices: output, two gradients
