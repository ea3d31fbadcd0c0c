"""Megatron-Core: communication of each parallelism as its papers count it, per micro batch of b x s tokens of width h
in 2 bytes.

The scripts are those of shared/workloads/frameworks/megatron: a GPT of width 256, 8 heads (4 key groups), feed-forward
688 (gated), vocabulary 2048, micro batches of 2 x 128 tokens; one activation is b s h x 2 = 131,072 bytes.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
from recording import communicated, peak_allocated_bytes, record, volume

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "workloads" / "frameworks" / "megatron"
pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("megatron") is None, reason="needs megatron-core (requirements/frameworks.txt)"
    ),
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"needs the scripts in {FOLDER}"),
]
CORE = str(FOLDER / "mcore_train.py")

WIDTH, HEADS, GROUPS, FEED, VOCABULARY = 256, 8, 4, 688, 2048
ACTIVATION_BYTES = 2 * 128 * WIDTH * 2
BOTH = (0, 1)
ATTENTION = WIDTH * WIDTH * 2 + WIDTH * WIDTH // 2 * 2  # query and output, key and value for half as many heads


def num_parameters(layers: int, norm: int = WIDTH) -> int:
    """Embedding and output layer, and for each layer attention, gated feed-forward and two norms; one norm at the
    end."""
    return 2 * VOCABULARY * WIDTH + layers * (ATTENTION + 3 * WIDTH * FEED + 2 * norm) + norm


def core(out: Path, nproc: int, *arguments: str):
    return record(out, nproc, CORE, "--steps", "2", *arguments)


def test_tensor_and_sequence_parallel(tmp_path: Path) -> None:
    """Korthikanti et al., 2022, section 4.2.2: a layer gathers and reduce-scatters twice in either direction (4 and 4),
    and gathers two inputs again for the gradients of the weights. The embedding scatters its output, the output layer
    gathers its input."""
    layers, micro_batches = 2, 2 * 2
    run = core(tmp_path, 2, "--tp", "2", "--sp", "--layers", str(layers), "--gbs", "4")
    assert communicated(run, "all_gather", BOTH)[ACTIVATION_BYTES] == micro_batches * (6 * layers + 3)
    assert communicated(run, "reduce_scatter", BOTH)[ACTIVATION_BYTES] == micro_batches * (4 * layers + 2)
    # The loss of a split vocabulary: maximum, target's logit and sum of exponentials of each token, in 4 bytes.
    assert communicated(run, "all_reduce", BOTH)[2 * 128 * 4] == micro_batches * 3


def test_pipeline_parallel_sends_each_micro_batch_forth_and_back(tmp_path: Path) -> None:
    run = core(tmp_path, 2, "--pp", "2", "--layers", "2", "--gbs", "8")
    for ranks in ((0, 1), (1, 0)):
        assert communicated(run, "send_recv", ranks)[ACTIVATION_BYTES] == 2 * 4


def test_interleaved_stages_send_more(tmp_path: Path) -> None:
    """Narayanan et al., 2021, section 2.2: v chunks on each of p stages have p v - 1 borders, crossed forward and
    backward."""
    run = core(tmp_path, 2, "--pp", "2", "--vpp", "2", "--layers", "4", "--gbs", "8")
    sent = sum(communicated(run, "send_recv", ranks)[ACTIVATION_BYTES] for ranks in ((0, 1), (1, 0)))
    assert sent == 2 * 4 * 2 * (2 * 2 - 1)


def test_the_distributed_optimizer_reduces_and_gathers_once(tmp_path: Path) -> None:
    """ZeRO stage 1: gradients (here float32) reduce-scattered, parameters (bf16) gathered, whatever the number of micro
    batches."""
    run = core(tmp_path, 2, "--dist-opt", "--overlap", "--layers", "2", "--gbs", "8")
    reduced, gathered = (volume(run, kind, BOTH, at_least=4096) for kind in ("reduce_scatter", "all_gather"))
    padded = pytest.approx(num_parameters(2), rel=0.002)  # buckets end at multiples of the ranks
    assert reduced / (4 * 2) == padded
    assert gathered / (2 * 2) == padded


def test_plain_data_parallel_reduces_all_gradients_and_keeps_all_state(tmp_path: Path) -> None:
    plain = core(tmp_path / "plain", 2, "--layers", "2", "--gbs", "4")
    assert volume(plain, "all_reduce", BOTH, at_least=4096) / (4 * 2) == pytest.approx(num_parameters(2), rel=0.002)
    sharded = core(tmp_path / "sharded", 2, "--layers", "2", "--gbs", "4", "--dist-opt")
    saved = peak_allocated_bytes(plain) - peak_allocated_bytes(sharded)
    assert saved == pytest.approx(
        12 * num_parameters(2) / 2, rel=0.15
    )  # half of master copy and two moments, in 4 bytes each


def test_experts_exchange_their_tokens(tmp_path: Path) -> None:
    """Each of a token's 2 choices travels to its expert and back, forward and backward."""
    layers, micro_batches = 2, 2 * 2
    run = core(tmp_path, 2, "--ep", "2", "--experts", "4", "--layers", str(layers), "--gbs", "8")
    assert communicated(run, "all_to_all", BOTH)[2 * ACTIVATION_BYTES] == micro_batches * layers * 4


def test_recomputation_repeats_the_forward_pass_and_saves_memory(tmp_path: Path) -> None:
    """Tensor parallelism all-reduces twice in either direction of a layer (Shoeybi et al., 2019, section 3);
    recomputing adds two."""
    layers, micro_batches = 4, 2 * 2
    plain = core(tmp_path / "plain", 2, "--tp", "2", "--layers", str(layers), "--gbs", "4")
    again = core(tmp_path / "again", 2, "--tp", "2", "--layers", str(layers), "--gbs", "4", "--recompute")
    per_layer = [communicated(run, "all_reduce", BOTH)[ACTIVATION_BYTES] / micro_batches for run in (plain, again)]
    assert per_layer[1] - per_layer[0] == 2 * layers
    assert per_layer[0] == 4 * layers + 2  # and the embedding's output, the output layer's gradient
    assert peak_allocated_bytes(again) < peak_allocated_bytes(plain)


def test_pretraining_through_megatron_training_and_torchrun(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    arguments = (
        "2",
        "--tensor-model-parallel-size",
        "2",
        "--use-distributed-optimizer",
        "--train-iters",
        "2",
        "--global-batch-size",
        "4",
    )
    run = record(tmp_path, 2, "", command=(bash, str(FOLDER / "pretrain.sh"), *arguments))
    layers, micro_batches = 4, 2 * 2
    assert communicated(run, "all_reduce", BOTH)[ACTIVATION_BYTES] == micro_batches * (4 * layers + 2)
