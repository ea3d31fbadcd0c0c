"""torchtitan 0.3.0 from its own entry point; what it communicates against formulas.

Model: llama3_debugmodel_ce_loss, d = 256, 6 layers, 16 heads, f = 768, vocabulary 2048. Parameters of a layer: 4 d^2 (attention)
+ 3 d f (SwiGLU) + 2 d (norms); 2 V d in the embedding and the head; d in the last norm.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from recording import communicated, record, volume
from titan_assets import write_assets

from phantora.trace.model import Run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")

STEPS, BATCH, SEQUENCE = 2, 2, 256
D, F, V, LAYERS = 256, 768, 2048, 6
LAYER = 4 * D * D + 3 * D * F + 2 * D
EMBEDDING, HEAD = V * D, V * D + D
WITHOUT_GRAPHS = "--training.disable-cuda-graphs"


@pytest.fixture(scope="module")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("titan")
    write_assets(folder)
    return folder


@pytest.fixture
def titan(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """titan(ranks, 'tensor-parallel-degree=2', ...) -> Run"""
    monkeypatch.chdir(assets)

    def run(nproc: int, *parallelism: str, config: str = "llama3_debugmodel_ce_loss", model: str = "llama3", more: tuple = ()) -> Run:
        degrees = [part for option in parallelism for part in (f"--parallelism.{option.split('=')[0]}", option.split("=")[1])]
        arguments = arguments_of(model, config, *degrees, *more)
        return record(tmp_path / "out", nproc, "torchtitan.train", *arguments, is_module=True)

    return run


def arguments_of(model: str, config: str, *more: str) -> list[str]:
    sizes = {"steps": STEPS, "seq-len": SEQUENCE, "local-batch-size": BATCH}
    training = [part for name, value in sizes.items() for part in (f"--training.{name}", str(value))]
    return ["--module", model, "--config", config, *training, "--parallelism.spmd-backend", "partial_dtensor", *more]


def times(counts: dict[int, int], factor: int) -> Counter[int]:
    return Counter({size: count * factor for size, count in counts.items()})


def large(counts: Counter[int], at_least: int = 1024) -> Counter[int]:
    """Without losses, gradient norms and token counts."""
    return Counter({size: count for size, count in counts.items() if size >= at_least})


# FSDP2 with bf16 parameters and fp32 gradients (Zhao et al., 2023, PyTorch FSDP, section 3.2: parameters are gathered for the
# forward and, when resharded after it, for the backward pass; gradients are reduce-scattered once). torchtitan keeps the head's.
FSDP_GATHERS = {2 * LAYER: 2 * LAYERS, 2 * EMBEDDING: 2, 2 * HEAD: 1}
FSDP_SCATTERS = {4 * LAYER: LAYERS, 4 * EMBEDDING: 1, 4 * HEAD: 1}


def test_fsdp2(titan) -> None:
    run = titan(2)
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)
    assert volume(run, "all_reduce", at_least=1024) == 0


def test_fsdp2_under_torchrun_communicates_the_same(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(assets)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "torchtitan.train"]
    run = record(tmp_path / "out", 2, "", command=(*command, *arguments_of("llama3", "llama3_debugmodel_ce_loss")))
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)


def test_hsdp(titan) -> None:
    """As FSDP2 in each shard group; each rank's shard of the fp32 gradients is then all-reduced over the replicas."""
    run = titan(4, "data-parallel-replicate-degree=2", "data-parallel-shard-degree=2")
    for shards in ((0, 1), (2, 3)):
        assert large(communicated(run, "all_gather", shards)) == times(FSDP_GATHERS, STEPS)
        assert large(communicated(run, "reduce_scatter", shards)) == times(FSDP_SCATTERS, STEPS)
    for replicas in ((0, 2), (1, 3)):
        halves = {size // 2: count for size, count in FSDP_SCATTERS.items()}
        assert large(communicated(run, "all_reduce", replicas)) == times(halves, STEPS)


def test_tensor_parallel_with_sequence_parallel(titan) -> None:
    """Korthikanti et al. (2022), section 4.2.2: two all-gathers and two reduce-scatters of the activations (2 b s d bytes) per layer
    and pass, and the gathers once more in the backward pass, because a shard of each input is kept. Embedding and head are split
    as well: one pair per pass.
    """
    run = titan(2, "tensor-parallel-degree=2")
    activations = 2 * BATCH * SEQUENCE * D
    assert communicated(run, "all_gather")[activations] == STEPS * (3 * 2 * LAYERS + 2)
    assert communicated(run, "reduce_scatter")[activations] == STEPS * (2 * 2 * LAYERS + 2)
    assert communicated(run, "all_reduce")[2 * D] == STEPS * (2 * LAYERS + 1)  # gradients of norms, which see half the sequence
    assert communicated(run, "all_reduce")[4 * BATCH * SEQUENCE] == STEPS * 3  # loss on a split vocabulary: max, sum, target


@pytest.mark.parametrize("mode", ["none", "full"])
def test_activation_checkpointing(titan, mode: str) -> None:
    """Communication of FSDP2 does not change: the backward pass gathers anyway."""
    run = titan(2, more=("activation-checkpoint:none" if mode == "none" else "activation-checkpoint:full",))
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    names = [run.signatures[s].name for s in run.ranks[0].signature if s >= 0]
    assert names.count("flex_attention::forward") == STEPS * LAYERS * (2 if mode == "full" else 1)


@pytest.mark.parametrize(("schedule", "stages"), [("1F1B", 2), ("Interleaved1F1B", 4)])
def test_pipeline(titan, schedule: str, stages: int) -> None:
    """Narayanan et al. (2021), section 2.2: activations (bf16) cross each boundary of stages once forward, their gradients once
    backward, for each microbatch (here of one sequence).
    """
    options = ("pipeline-parallel-degree=2", f"pipeline-parallel-schedule={schedule}")
    run = titan(2, *options, more=(WITHOUT_GRAPHS,))
    activations = 2 * SEQUENCE * D
    assert communicated(run, "send_recv")[activations] == STEPS * BATCH * 2 * (stages - 1)


def test_context_parallel(titan) -> None:
    """Keys and values (b s d values of bf16 each) are gathered over the ranks of a sequence in each layer, again when the layer is
    recomputed, and their gradients reduce-scattered (Dubey et al., 2024, The Llama 3 Herd of Models, section 3.3.2). Parameters are
    sharded over these ranks as well.
    """
    run = titan(2, "context-parallel-degree=2", more=(WITHOUT_GRAPHS,))
    tensor = 2 * BATCH * SEQUENCE * D
    assert communicated(run, "all_gather")[tensor] == STEPS * LAYERS * 2 * 2
    assert communicated(run, "reduce_scatter")[tensor] == STEPS * LAYERS * 2
    assert communicated(run, "all_gather")[2 * LAYER] == STEPS * 2 * LAYERS


def test_expert_parallel(titan) -> None:
    """deepseek_v3_debugmodel: 5 MoE layers of 8 experts, 3 of which a token visits. GShard (Lepikhin et al., 2021, section 3.2): tokens
    go to the experts and back, and so do the gradients: 4 all-to-alls of b s k d values per layer; counts of the experts before.
    """
    moe_layers, chosen, experts = 5, 3, 8
    run = titan(2, "expert-parallel-degree=2", model="deepseek_v3", config="deepseek_v3_debugmodel", more=(WITHOUT_GRAPHS,))
    tokens = 2 * BATCH * SEQUENCE * chosen * D
    assert communicated(run, "all_to_all")[tokens] == STEPS * moe_layers * 4
    assert communicated(run, "all_to_all")[8 * experts] == STEPS * moe_layers


def test_compiled(titan) -> None:
    """Fewer, fused kernels; the communication of FSDP2 stays."""
    run = titan(2, more=("--compile.enable",))
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)
    assert any(signature.family == "fused" for signature in run.signatures)


def test_checkpoint_loads_again(titan, assets: Path) -> None:
    """2 ranks save parameters and two moments in fp32; the second run continues where the first one ended, so it does nothing."""
    options = ("--checkpoint.enable", "--checkpoint.interval", "1", "--dump-folder", "saved")
    titan(2, more=options)
    files = sorted((assets / "saved/checkpoint/step-2").glob("*.distcp"))
    parameters = LAYERS * LAYER + EMBEDDING + HEAD
    assert sum(f.stat().st_size for f in files) >= 3 * 4 * parameters
    again = titan(2, more=options)
    assert communicated(again, "reduce_scatter")[4 * LAYER] == 0


def test_float8(titan) -> None:
    """torchao's Float8Linear: products of scaled 8-bit operands."""
    if importlib.util.find_spec("torchao") is None:
        pytest.skip("torchao is not installed")
    run = titan(2, config="llama3_debugmodel_float8")
    assert sum(1 for s in run.ranks[0].signature if s >= 0 and run.signatures[s].name == "aten::_scaled_mm") > 0
