"""Megatron-Core's options, from a script on megatron.core and through megatron.training.

What each parallelism communicates and holds by itself is compared with the formulas in test_textbook.py. Here: a GPT of
width 256, 8 heads (4 key groups), feed-forward 688 (gated), vocabulary 2048, micro batches of 2 x 128 tokens; one
activation is b s h x 2 = 131,072 bytes.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from megatron_arguments import PRETRAIN, PRETRAIN_ARGUMENTS
from recording import communicated, kernels, peak_allocated_bytes, record, volume

from phantora.trace.model import Run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="needs megatron-core (requirements/frameworks.txt)"
)
CORE = str(Path(__file__).parent / "scripts" / "megatron_core.py")

WIDTH, HEADS, GROUPS, FEED, VOCABULARY = 256, 8, 4, 688, 2048
ACTIVATION_BYTES = 2 * 128 * WIDTH * 2
BOTH = (0, 1)
STEPS, MICRO_BATCHES = 2, 2
ATTENTION = WIDTH * WIDTH * 2 + WIDTH * WIDTH // 2 * 2  # query and output, key and value for half as many heads


@pytest.fixture(autouse=True)
def one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")  # Megatron wants it for tensor parallelism


def num_parameters(layers: int) -> int:
    """Embedding and output layer, and for each layer attention, gated feed-forward and two norms; one norm at the
    end."""
    return 2 * VOCABULARY * WIDTH + layers * (ATTENTION + 3 * WIDTH * FEED + 2 * WIDTH) + WIDTH


def core(out: Path, nproc: int, *arguments: str) -> Run:
    return record(out, nproc, CORE, *arguments)


def printed(out: Path) -> str:
    return (out / "logs" / "rank_0" / "stdout.log").read_text()


def test_layers_without_transformer_engine_and_recomputation(tmp_path: Path) -> None:
    """Shoeybi et al., 2019, section 3: two all-reduces in either direction of a layer; recomputing adds the two of the
    forward pass (Korthikanti et al., 2022, section 5, full recomputation) and saves memory."""
    layers = 4
    same = ("--tp", "2", "--layers", str(layers), "--sequence", "512")
    plain = core(tmp_path / "plain", 2, *same)
    again = core(tmp_path / "again", 2, *same, "--recompute", "full")
    activation = 4 * ACTIVATION_BYTES
    runs = [communicated(run, "all_reduce", BOTH)[activation] / (STEPS * MICRO_BATCHES) for run in (plain, again)]
    assert runs == [4 * layers + 2, 6 * layers + 2]
    assert peak_allocated_bytes(again) < peak_allocated_bytes(plain)


def test_selective_recomputation_repeats_attention_alone(tmp_path: Path) -> None:
    """Korthikanti et al., 2022, section 5: the products of attention are computed again, nothing is communicated
    again, and the scores (heads x s x s, here in 2 and 4 bytes) are not kept. Without Transformer Engine, as its
    attention keeps none anyway."""
    same = ("--tp", "2", "--sequence", "1024")
    plain = core(tmp_path / "plain", 2, *same)
    again = core(tmp_path / "again", 2, *same, "--recompute", "selective")
    runs = [communicated(run, "all_reduce", BOTH)[8 * ACTIVATION_BYTES] for run in (plain, again)]
    assert runs[0] == runs[1] > 0
    scores = 2 * (HEADS // 2) * 1024 * 1024 * 2
    assert peak_allocated_bytes(plain) - peak_allocated_bytes(again) > scores


def test_the_distributed_optimizer_overlaps(tmp_path: Path) -> None:
    """ZeRO stage 1: gradients (here float32) reduce-scattered, parameters (bf16) gathered once a step, whatever the
    number of micro batches; with overlap, bucket by bucket beside the backward pass."""
    run = core(tmp_path, 2, "--distributed-optimizer", "--overlap", "--micro-batches", "4", "--te")
    reduced, gathered = (volume(run, kind, BOTH, at_least=4096) for kind in ("reduce_scatter", "all_gather"))
    padded = pytest.approx(num_parameters(2), rel=0.002)  # buckets end at multiples of the ranks
    assert reduced / (4 * STEPS) == padded
    assert gathered / (2 * STEPS) == padded
    # Two buckets: that of the last layers is reduced before the first ones have their gradients.
    early, late = sorted(c.start_ns for c in run.collectives if c.kind == "reduce_scatter" and c.bytes >= 4096)[-2:]
    trace = run.ranks[0]
    products = [at for n, at in zip(trace.signature, trace.start_ns) if n >= 0 and run.signatures[n].name == "aten::mm"]
    assert any(early < at < late for at in products)


def test_uneven_stages(tmp_path: Path) -> None:
    """The first stage has one layer of three: its kernels take less time; messages are as ever."""
    run = core(tmp_path, 2, "--te", "--pp", "2", "--layers", "3", "--first-layers", "1")
    products = [kernels(run, rank)["aten::mm"] for rank in (0, 1)]
    # Four products a layer, each with two gradients; the output layer's three.
    assert products == [STEPS * MICRO_BATCHES * 12 * 1, STEPS * MICRO_BATCHES * (12 * 2 + 3)]
    for ranks in (BOTH, (1, 0)):
        assert communicated(run, "send_recv", ranks)[ACTIVATION_BYTES] == STEPS * MICRO_BATCHES


def test_fp16_scales_the_loss_and_checkpoints_load_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINTS", str(tmp_path / "checkpoints"))
    width = ("--hidden", "1024", "--heads", "32", "--groups", "16")
    run = core(tmp_path / "out", 2, "--te", "--fp16", "--distributed-optimizer", "--save", *width)
    assert {c.dtype for c in run.collectives if c.kind == "all_gather" and c.bytes > 2**20} == {"float16"}
    text = printed(tmp_path / "out")
    assert text.count("took") == STEPS and "loaded again" in text
    files = [path.stat() for path in (tmp_path / "checkpoints").rglob("*.distcp")]
    matrices = 2 * VOCABULARY * 1024 + 2 * (3 * 1024 * 1024 + 3 * 1024 * FEED)
    state_bytes = (2 + 12) * matrices  # parameters in 16 bits; master copy and moments
    assert sum(file.st_size for file in files) >= state_bytes
    assert sum(file.st_blocks * 512 for file in files) < state_bytes / 4  # zeros became holes


def test_eight_ranks_of_four_parallelisms(tmp_path: Path) -> None:
    """Tensor 2 x pipeline 2 x data 2, experts 2: each kind stays in its group. Megatron's order of ranks: tensor, data,
    pipeline; experts, which are not tensor parallel, take the place of tensor parallelism."""
    run = core(
        tmp_path, 8, "--te", "--tp", "2", "--pp", "2", "--ep", "2", "--experts", "4", "--sp",
        "--distributed-optimizer", "--overlap",
    )  # fmt: skip
    activation, each = ACTIVATION_BYTES, STEPS * MICRO_BATCHES
    assert communicated(run, "send_recv", (0, 4))[activation // 2] == each  # half of the sequence on each rank
    # One layer a stage: two sublayers, of which attention alone is tensor parallel: three gathers and two scatters.
    assert communicated(run, "reduce_scatter", (4, 5))[activation] >= 2 * each
    tokens_and_choices = 2 * activation // 2
    for ranks in ((0, 1), (2, 3), (4, 5), (6, 7)):
        assert communicated(run, "all_to_all", ranks)[tokens_and_choices] == 4 * each


@pytest.mark.parametrize("dispatcher", ["allgather", "flex"])
def test_other_dispatchers_of_tokens(tmp_path: Path, dispatcher: str) -> None:
    """allgather: each rank gets all ranks' tokens, and reduce-scatters what its experts made of them. flex: DeepEP's
    kernels, which send a token once to a rank however many of its experts are there."""
    run = core(tmp_path, 2, "--te", "--ep", "2", "--experts", "4", "--dispatcher", dispatcher)
    passes = STEPS * MICRO_BATCHES * 2  # layers
    if dispatcher == "allgather":
        assert communicated(run, "all_gather", BOTH)[2 * ACTIVATION_BYTES] == 2 * passes  # and in the backward pass
        assert communicated(run, "reduce_scatter", BOTH)[2 * ACTIVATION_BYTES] == 2 * passes
    else:
        sent = [c for c in run.collectives if c.kind == "all_to_all" and c.bytes >= ACTIVATION_BYTES]
        assert len(sent) == 4 * passes


def test_pretraining_through_megatron_training_and_torchrun(tmp_path: Path) -> None:
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
    options = ("--transformer-impl", "local", "--tensor-model-parallel-size", "2", "--use-distributed-optimizer")
    run = record(tmp_path, 2, "", command=(*torchrun, PRETRAIN, *PRETRAIN_ARGUMENTS, *options))
    layers, micro_batches = 4, 2 * 2
    assert communicated(run, "all_reduce", BOTH)[ACTIVATION_BYTES] == micro_batches * (4 * layers + 2)
