"""torchtitan 0.2.2, configured by a TOML file, from its own entry point.

PHANTORA_TORCHTITAN_022 names a folder made by `pip install --no-deps --target FOLDER torchtitan==0.2.2`. Its debug model has the
sizes of 0.3.0's.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recording import communicated, kernels, record
from titan_runs import ACTIVATIONS, BATCH, FSDP_GATHERS, FSDP_SCATTERS, LAYERS, SEQUENCE, STEPS, assets, large, times

from phantora.trace.model import Run

FOLDER = os.environ.get("PHANTORA_TORCHTITAN_022", "")
pytestmark = pytest.mark.skipif(not Path(FOLDER, "torchtitan").is_dir(), reason="PHANTORA_TORCHTITAN_022 names no torchtitan 0.2.2")

CONFIG = f"""
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "./tests/assets/tokenizer"
[training]
local_batch_size = {BATCH}
seq_len = {SEQUENCE}
steps = {STEPS}
dataset = "c4_test"
[metrics]
log_freq = 1
"""


def titan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nproc: int, *more: str) -> Run:
    monkeypatch.chdir(assets())
    monkeypatch.setenv("PYTHONPATH", FOLDER)
    config = tmp_path / "debug.toml"
    config.write_text(CONFIG)
    return record(tmp_path / "out", nproc, "torchtitan.train", "--job.config_file", str(config), *more, is_module=True)


def test_fsdp2_with_every_second_layer_checkpointed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zhao et al. (2023), section 3.2, as for 0.3.0. selective_ac_option "2" computes each second layer again: its 7 products (q, k, v, o,
    w1, w3, w2) and its attention."""
    options = ("--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "2")
    run = titan(tmp_path, monkeypatch, 2, *options)
    assert large(communicated(run, "all_gather", (0, 1))) == times(FSDP_GATHERS, STEPS)
    assert large(communicated(run, "reduce_scatter", (0, 1))) == times(FSDP_SCATTERS, STEPS)
    assert kernels(run)["aten::mm"] == STEPS * (LAYERS * 3 * 7 + LAYERS // 2 * 7 + 3)


def test_tensor_parallel_times_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor-parallel pair of ranks has 3 of 6 layers: 2 gathers and 2 scatters per layer and pass (Korthikanti et al., 2022,
    section 4.2.2; nothing is gathered again, because without checkpointing DTensor keeps what it gathered), and a pair for the embedding
    or the head. Before the first step torch.distributed.pipelining runs a microbatch to learn shapes, forward on the first stage, both
    ways on the last. Between the stages each rank sends its share of the activations forward and of their gradients backward
    (Narayanan et al., 2021, section 2.2). Without FSDP everything is fp32.
    """
    options = ("--parallelism.tensor_parallel_degree", "2", "--parallelism.pipeline_parallel_degree", "2")
    checkpointing = ("--activation_checkpoint.mode", "none")
    run = titan(tmp_path, monkeypatch, 4, *options, "--parallelism.pipeline_parallel_schedule", "1F1B", *checkpointing)
    of_one_sequence = 2 * ACTIVATIONS // BATCH  # fp32
    microbatches, per_pass = STEPS * BATCH, 2 * LAYERS // 2
    first, last = microbatches * (2 * per_pass + 1), (microbatches + 1) * (2 * per_pass + 1)
    assert communicated(run, "all_gather", (0, 1))[of_one_sequence] == first + per_pass
    assert communicated(run, "reduce_scatter", (0, 1))[of_one_sequence] == first + per_pass + 1  # the embedding's is forward
    for kind in ("all_gather", "reduce_scatter"):
        assert communicated(run, kind, (2, 3))[of_one_sequence] == last
    for source, destination in ((0, 2), (2, 0), (1, 3), (3, 1)):
        assert communicated(run, "send_recv", (source, destination))[of_one_sequence // 2] == microbatches


def test_zero_bubble_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ZB-V (Qi et al., 2023, Zero Bubble Pipeline Parallelism, section 6): two stages on each rank in the order 0, 1, 1, 0, so of three
    boundaries one lies within a rank; activations cross the other two once forward, gradients once backward, for each microbatch. Fp32.
    """
    options = ("--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule", "ZBVZeroBubble")
    run = titan(tmp_path, monkeypatch, 2, *options)
    for ranks in ((0, 1), (1, 0)):
        assert communicated(run, "send_recv", ranks)[2 * ACTIVATIONS // BATCH] == STEPS * BATCH * 2
