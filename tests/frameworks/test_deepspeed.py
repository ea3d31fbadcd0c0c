"""DeepSpeed: communication per step as the ZeRO paper counts it (Rajbhandari et al., 2020, section 7).

Of a model with N parameters in 16 bits, one step moves in bytes: the gradients, 2 N for each reduction; the parameters,
2 N for each gather. Stages 1 and 2 gather once a step; stage 1 reduces once a step, stage 2 at every micro batch (what
it keeps is a partition of the sum). Stage 3 gathers at every forward and every backward pass, and reduce-scatters at
every backward pass. DeepSpeed 0.19 reduces the buckets of stages 1 and 2 with all-reduce.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from recording import communicated, kernels, launches, peak_allocated_bytes, record, volume

from phantora.trace.model import CollectiveInfo, Run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="needs deepspeed (requirements/frameworks.txt)"
)
SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = str(SCRIPTS / "deepspeed_train.py")
NUM_PARAMETERS = 8 * 256 * 256
STEPS = MICRO_BATCHES = 2
BOTH = (0, 1)


def in_last_step(run: Run) -> list[CollectiveInfo]:
    """Stage 3 ends each step with an all-reduce of the gradients' norm, a float64."""
    ordered = sorted(run.collectives, key=lambda c: c.start_ns)
    ends = [i for i, c in enumerate(ordered) if c.kind == "all_reduce" and c.dtype == "float64"]
    assert len(ends) == STEPS
    return ordered[ends[-2] + 1 : ends[-1]]


@pytest.mark.parametrize(("stage", "reductions"), [(1, 1), (2, MICRO_BATCHES)])
def test_zero_1_and_2_reduce_gradients_and_gather_parameters(tmp_path: Path, stage: int, reductions: int) -> None:
    run = record(tmp_path, 2, TRAIN, "--stage", str(stage))
    assert volume(run, "all_reduce", BOTH, at_least=1024) == STEPS * reductions * 2 * NUM_PARAMETERS
    assert communicated(run, "all_gather", BOTH) == {2 * NUM_PARAMETERS: STEPS}
    assert "deepspeed::multi_tensor_adam" in kernels(run)  # its own FusedAdam, without nvcc


def test_zero_3_gathers_twice_and_reduces_once_for_each_micro_batch(tmp_path: Path) -> None:
    run = record(tmp_path, 2, TRAIN, "--stage", "3")
    step = in_last_step(run)
    gathered = [c.bytes for c in step if c.kind == "all_gather"]
    assert gathered == [2 * 256 * 256] * (8 * 2 * MICRO_BATCHES)  # layer by layer, forward and backward: 2 x 2 N
    assert sum(c.bytes for c in step if c.kind == "reduce_scatter") == MICRO_BATCHES * 2 * NUM_PARAMETERS
    assert {c.ranks for c in step} == {BOTH}


def test_the_launcher_starts_the_ranks(tmp_path: Path) -> None:
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    run = record(tmp_path, 2, "", command=(launcher, "--num_gpus", "2", TRAIN, "--stage", "1"))
    assert volume(run, "all_reduce", BOTH, at_least=1024) == STEPS * 2 * NUM_PARAMETERS
    assert [trace.exit_code for trace in run.ranks] == [0, 0]


def test_an_offloaded_optimizer_costs_copies_and_host_time(tmp_path: Path) -> None:
    run = record(tmp_path, 2, TRAIN, "--stage", "2", "--offload", "--accumulate", "1")
    copies = {name: _copied_bytes(run, name) for name in ("memcpy_d2h", "memcpy_h2d")}
    assert copies["memcpy_d2h"] >= STEPS * 2 * NUM_PARAMETERS // 2  # each rank's half of the gradients
    assert copies["memcpy_h2d"] >= STEPS * 2 * NUM_PARAMETERS // 2  # and of the new parameters
    assert any("CPU optimizer of DeepSpeed" in note for note in run.notes)
    # ZeRO-Offload, table 4: 28 bytes a parameter at 109 GB/s, of a node whose two ranks share it.
    update_ns = 28 * (NUM_PARAMETERS // 2) * 2 * 1e9 / 109e9
    assert _longest_host_gap_ns(run) >= update_ns


def _copied_bytes(run: Run, name: str) -> int:
    return sum(signature.bytes for signature in launches(run) if signature.name == name)


def _longest_host_gap_ns(run: Run) -> int:
    issued: Sequence[int] = run.ranks[0].issue_ns
    return max(b - a for a, b in zip(issued, issued[1:]))


def test_fp16_scales_the_loss_and_takes_every_step(tmp_path: Path) -> None:
    run = record(tmp_path, 2, TRAIN, "--stage", "2", "--fp16")
    assert {c.dtype for c in run.collectives if c.bytes == 2 * NUM_PARAMETERS} == {"float16"}
    assert communicated(run, "all_gather", BOTH) == {2 * NUM_PARAMETERS: STEPS}  # a skipped step would not gather
    assert "loss scale 65536" in (tmp_path / "logs" / "rank_0" / "stdout.log").read_text()


def test_another_fused_optimizer_needs_no_compiler(tmp_path: Path) -> None:
    run = record(tmp_path, 1, TRAIN, "--stage", "1", "--steps", "1", "--optimizer", "Lion")
    assert "deepspeed::multi_tensor_lion" in kernels(run)
    assert (
        peak_allocated_bytes(run) >= (2 + 2 + 4 + 4) * NUM_PARAMETERS
    )  # parameters, gradients, master copy, one moment


PARALLEL = str(SCRIPTS / "deepspeed_parallel.py")


def test_the_pipeline_module_sends_each_micro_batch_forth_and_back(tmp_path: Path) -> None:
    run = record(tmp_path, 2, PARALLEL, "pipeline")
    activation_bytes, sent = 4 * 128 * 2, STEPS * 4  # batch x width x bf16; 4 micro batches
    for ranks in ((0, 1), (1, 0)):
        # Once, the shape goes ahead: a message of int32, by chance as long.
        messages = [c for c in run.collectives if c.kind == "send_recv" and c.ranks == ranks and c.dtype == "bfloat16"]
        assert [c.bytes for c in messages] == [activation_bytes] * sent


def test_the_moe_layer_exchanges_its_capacity(tmp_path: Path) -> None:
    """GShard (Lepikhin et al., 2021): experts x capacity x width each way, forward and backward; capacity = tokens /
    experts."""
    run = record(tmp_path, 2, PARALLEL, "moe")
    tokens, experts, width = 4 * 64, 4, 128
    assert communicated(run, "all_to_all", BOTH) == {experts * (tokens // experts) * width * 2: STEPS * 4}


def test_ulysses_exchanges_query_key_value_and_output(tmp_path: Path) -> None:
    """Jacobs et al., 2023, section 3.2: four all-to-alls of the local sequence x width forward, and as many
    backward."""
    run = record(tmp_path, 2, PARALLEL, "ulysses")
    assert communicated(run, "all_to_all", BOTH) == {4 * 8 * 32 * 16 * 2: STEPS * 2 * 4}


# ------------------------------------------------------------------ one option at a time

WIDTH, LAYERS, BATCH = 256, 8, 4


def with_option(out: Path, option: str) -> Run:
    return record(out, 2, str(SCRIPTS / "deepspeed_options.py"), option)


def test_parameters_in_host_memory_are_copied_before_each_gather(tmp_path: Path) -> None:
    """ZeRO-Infinity (Rajbhandari et al., 2021, section 5.1.1): each rank brings its partition over its own PCIe link,
    forward and backward, then all gather."""
    run = with_option(tmp_path, "offload_param")
    partition_bytes = 2 * NUM_PARAMETERS // 2
    assert _copied_bytes(run, "memcpy_h2d") >= STEPS * 2 * partition_bytes
    assert volume(run, "all_gather", BOTH, at_least=1024) == STEPS * 2 * 2 * NUM_PARAMETERS
    assert any("CPU optimizer of DeepSpeed" in note for note in run.notes)


def test_quantized_weights_are_gathered_in_8_bits(tmp_path: Path) -> None:
    """ZeRO++ (Wang et al., 2023, section 3.1): half of the bytes of 16 bits, and a float32 scale for each block."""
    run = with_option(tmp_path, "quantized_weights")
    sizes: dict[str, int] = {}
    for collective in run.collectives:
        if collective.kind == "all_gather":
            sizes[collective.dtype] = sizes.get(collective.dtype, 0) + collective.bytes
    gathers = STEPS * 2 * NUM_PARAMETERS  # numbers in all: forward and backward
    assert sizes["int8"] > 0 and sizes["int8"] + sizes["bfloat16"] // 2 == gathers
    assert 0 < sizes["float32"] < sizes["int8"] / 100
    assert {"deepspeed::quantize", "deepspeed::dequantize"} <= kernels(run).keys()


def test_sparse_gradients_of_an_embedding_are_gathered(tmp_path: Path) -> None:
    """Of the rows that were looked up: all ranks' indices and values instead of a reduction of the table."""
    run = with_option(tmp_path, "sparse")
    assert communicated(run, "all_gather", BOTH)[2 * BATCH * WIDTH * 4] == STEPS
    assert communicated(run, "all_gather", BOTH)[2 * BATCH * 8] == STEPS
    assert volume(run, "all_reduce", BOTH, at_least=1024) == STEPS * LAYERS * WIDTH * WIDTH * 4


def test_activation_checkpointing_repeats_the_forward_pass(tmp_path: Path) -> None:
    run = with_option(tmp_path, "checkpointing")
    assert kernels(run)["aten::mm"] == STEPS * LAYERS * (1 + 1 + 2)  # forward, again, two gradients


def test_lamb_needs_no_compiler(tmp_path: Path) -> None:
    run = with_option(tmp_path, "lamb")
    assert kernels(run)["deepspeed::lamb"] >= STEPS


def test_compiled_layers_communicate_as_eager_ones(tmp_path: Path) -> None:
    run = with_option(tmp_path, "compile")
    assert any(note.startswith("torch.compile") for note in run.notes)
    assert volume(run, "all_gather", BOTH, at_least=1024) == STEPS * 2 * NUM_PARAMETERS


def test_checkpoints_of_partitions_load_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoints"
    monkeypatch.setenv("CHECKPOINTS", str(folder))
    with_option(tmp_path / "out", "save")
    assert "done" in (tmp_path / "out" / "logs" / "rank_0" / "stdout.log").read_text()
    files = [path.stat() for path in folder.rglob("*optim_states.pt")]
    assert len(files) == 2 and sum(file.st_size for file in files) >= 12 * NUM_PARAMETERS


def test_what_is_not_simulated_is_named(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="DeepSpeed's operator .* is not simulated"):
        with_option(tmp_path, "nvme")
