"""torchtitan 0.3.0 from its own entry point: data, tensor and context parallelism, what they communicate against formulas."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from recording import communicated, kernels, record, volume
from titan_runs import (
    ACTIVATIONS, BATCH, D, FSDP_GATHERS, FSDP_SCATTERS, LAYER, LAYERS, SEQUENCE, STEPS, WITHOUT_GRAPHS, arguments_of, assets,
    large, needs_torchtitan, times, titan,
)  # fmt: skip

pytestmark = needs_torchtitan


def test_fsdp2() -> None:
    run = titan(2)
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)
    assert volume(run, "all_reduce", at_least=1024) == 0


def test_fsdp2_under_torchrun_communicates_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(assets())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "torchtitan.train"]
    run = record(tmp_path / "out", 2, "", command=(*command, *arguments_of("llama3", "llama3_debugmodel_ce_loss")))
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)


def test_hsdp() -> None:
    """As FSDP2 in each shard group; each rank's shard of the fp32 gradients is then all-reduced over the replicas."""
    run = titan(4, "data-parallel-replicate-degree=2", "data-parallel-shard-degree=2")
    for shards in ((0, 1), (2, 3)):
        assert large(communicated(run, "all_gather", shards)) == times(FSDP_GATHERS, STEPS)
        assert large(communicated(run, "reduce_scatter", shards)) == times(FSDP_SCATTERS, STEPS)
    for replicas in ((0, 2), (1, 3)):
        halves = {size // 2: count for size, count in FSDP_SCATTERS.items()}
        assert large(communicated(run, "all_reduce", replicas)) == times(halves, STEPS)


# Korthikanti et al. (2022), section 4.2.2: two all-gathers and two reduce-scatters of the activations (2 b s d bytes) per layer and
# pass, and the gathers once more in the backward pass, because a shard of each input is kept. Embedding and head are split as well:
# one pair per pass.
TP_GATHERS, TP_SCATTERS = 3 * 2 * LAYERS + 2, 2 * 2 * LAYERS + 2


def test_tensor_parallel_with_sequence_parallel() -> None:
    run = titan(2, "tensor-parallel-degree=2")
    assert communicated(run, "all_gather")[ACTIVATIONS] == STEPS * TP_GATHERS
    assert communicated(run, "reduce_scatter")[ACTIVATIONS] == STEPS * TP_SCATTERS
    assert communicated(run, "all_reduce")[2 * D] == STEPS * (2 * LAYERS + 1)  # gradients of norms, which see half the sequence
    assert communicated(run, "all_reduce")[4 * BATCH * SEQUENCE] == STEPS * 3  # loss on a split vocabulary: max, sum, target


def test_asynchronous_tensor_parallel() -> None:
    """The same gathers and scatters; Inductor makes most of those beside a product into copies between GPUs (one of ACTIVATIONS / 2
    bytes on two ranks) that overlap with it. A fused gather has 3 barriers, a fused scatter 2 + 2 (n - 1)
    (torch/distributed/_symmetric_memory/__init__.py). What stays: embedding and head, which are not compiled, and per layer the scatter
    behind the sum of two products (w1 and w3 backward) and one gather.
    """
    run = titan(2, "tensor-parallel-degree=2", more=("--compile.enable", "--compile.enable-async-tensor-parallel"))
    gathers, scatters = communicated(run, "all_gather")[ACTIVATIONS], communicated(run, "reduce_scatter")[ACTIVATIONS]
    fused_gathers, fused_scatters = STEPS * TP_GATHERS - gathers, STEPS * TP_SCATTERS - scatters
    assert (gathers, scatters) == (STEPS * (LAYERS + 2), STEPS * (LAYERS + 2))
    assert kernels(run)["memcpy_p2p"] == fused_gathers + fused_scatters
    at_start = 1
    assert communicated(run, "barrier")[0] == at_start + 3 * fused_gathers + 4 * fused_scatters
    copied = {s.bytes for s in run.signatures if s.name == "memcpy_p2p"}
    assert copied == {ACTIVATIONS // 2}


@pytest.mark.parametrize("balancer", ["headtail", "None"])
def test_context_parallel(balancer: str) -> None:
    """Keys and values (b s d values of bf16 each) are gathered over the ranks of a sequence in each layer, again when the layer is
    recomputed, and their gradients reduce-scattered (Dubey et al., 2024, The Llama 3 Herd of Models, section 3.3.2). Parameters are
    sharded over these ranks as well. How the sequence is cut does not change that.
    """
    run = titan(2, "context-parallel-degree=2", f"context-parallel-load-balancer={balancer}", more=(WITHOUT_GRAPHS,))
    assert communicated(run, "all_gather")[ACTIVATIONS] == STEPS * LAYERS * 2 * 2
    assert communicated(run, "reduce_scatter")[ACTIVATIONS] == STEPS * LAYERS * 2
    assert communicated(run, "all_gather")[2 * LAYER] == STEPS * 2 * LAYERS
