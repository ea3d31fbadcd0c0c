"""transformers' Trainer and accelerate from their own entry points; what they communicate against formulas.

Every count of parameters is written out from the model's sizes: `scripts/hf_trainers.py` has them all with width D =
256, two layers, eight heads and a vocabulary of 2048. One recorded run holds several trainings, each in an NVTX range.
"""

from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import pytest
from recording import communicated, record, volume

from phantora.trace.model import Run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")

SCRIPT = str(Path(__file__).parent / "scripts" / "hf_trainers.py")
SHARED_SCRIPT = (
    Path(__file__).resolve().parents[2].parent / "shared" / "workloads" / "frameworks" / "hf" / "trainer_fsdp.py"
)
STEPS, V, D, L = 2, 2048, 256, 2
# Llama with grouped keys: 8 heads, 4 of keys and values: q and o are D x D, k and v D x D/2; SwiGLU of width 688; two norms.
LLAMA_LAYER = 3 * D * D + 3 * D * 688 + 2 * D
# Mixtral: the same attention and norms, a router, four experts of width 512.
MIXTRAL_LAYER = 3 * D * D + 2 * D + 4 * D + 4 * 3 * D * 512
UNTIED = 2 * V * D + D  # embedding, head, last norm
# GPT-2, BERT, ViT: four D x D of attention, 4D wide feed-forward network, biases, two layer norms.
BLOCK = 12 * D * D + 13 * D
GPT2_REST = V * D + 256 * D + 2 * D  # tokens (the head is tied to them), positions, last norm
# Tokens (tied to the decoder), 512 positions, 2 segments, norm; head: dense, norm, the decoder's bias.
BERT_REST = (V + 512 + 2) * D + 2 * D + (D * D + D + 2 * D + V)
VIT_REST = (
    D + 65 * D + (3 * 8 * 8 * D + D) + 2 * D + (10 * D + 10)
)  # class token, 64 + 1 positions, patches, norm, classifier
# T5: attention without biases, feed-forward width 1024, RMS norms; relative positions (32 buckets x 8 heads) in the first layer of each.
T5_ENCODER, T5_DECODER, T5_POSITIONS = 4 * D * D + 2 * D * 1024 + 2 * D, 8 * D * D + 2 * D * 1024 + 3 * D, 32 * 8
T5_REST = V * D + 2 * D  # tokens (tied three times), the last norms of encoder and decoder

PARAMETERS = {
    "llama": L * LLAMA_LAYER + UNTIED,
    "mixtral": L * MIXTRAL_LAYER + UNTIED,
    "gpt2": L * BLOCK + GPT2_REST,
    "bert": L * BLOCK + BERT_REST,
    "vit": L * BLOCK + VIT_REST,
    "t5": L * (T5_ENCODER + T5_DECODER) + 2 * T5_POSITIONS + T5_REST,
}
# How many tensors these are (tied ones once). A layer has 9 in Llama (7 matrices, 2 norms) and Mixtral (4 matrices, the
# router, 2 packed ones of all experts, 2 norms), 16 in BERT and ViT (6 matrices, 2 norms, their biases).
TENSORS = {
    "llama": 9 * L + 3,
    "mixtral": 9 * L + 3,
    "bert": 16 * L + 5 + 5,
    "vit": 16 * L + 8,
    "t5": (8 + 13) * L + 2 + 3,
}


def of_training(run: Run, name: str, kind: str, at_least: int = 0) -> Counter[int]:
    """bytes -> how often, of one kind of collective within the NVTX range `name`."""
    trace = run.ranks[0]
    begin = next(ns for ns, mark in zip(trace.mark_ns, trace.mark_name) if mark == name)
    ends = [ns for ns, depth in zip(trace.mark_ns, trace.mark_depth) if depth < 0 and ns >= begin]
    inside = (c for c in run.collectives if c.kind == kind and begin <= c.start_ns <= ends[0] and c.bytes >= at_least)
    return Counter(c.bytes for c in inside)


def total(counts: Counter[int]) -> int:
    return sum(size * count for size, count in counts.items())


def test_ddp(tmp_path: Path) -> None:
    """Each step all-reduces 4 bytes per parameter (Li et al., 2020, PyTorch Distributed, section 3.2): once however
    many batches are accumulated, whatever autocast or a GradScaler compute in, tied parameters once. Except under
    checkpointing, Trainer looks for unused parameters: DDP all-reduces one int32 for each parameter tensor then
    (section 3.2.3). At the start parameters are broadcast.
    """
    trainings = (
        "llama,accumulate=2",
        "mixtral,precision=fp16",
        "gpt2,checkpointing=1",
        "bert,precision=fp16",
        "vit,precision=fp32",
        "t5,accumulate=2",
    )
    run = record(tmp_path, 2, SCRIPT, *(f"{training},out={tmp_path / 'trainer'}" for training in trainings))
    for training in trainings:
        name, kind = f"{training},out={tmp_path / 'trainer'}", training.partition(",")[0]
        reduced = of_training(run, name, "all_reduce")
        unused = {4 * TENSORS[kind]: STEPS} if "checkpointing" not in training else {}
        assert {size: count for size, count in reduced.items() if size < 1024} == unused, training
        assert total(of_training(run, name, "all_reduce", at_least=1024)) == STEPS * 4 * PARAMETERS[kind], training
        rotary = 2 * 4 * 16 if kind in ("llama", "mixtral") else 0  # buffers of float32 travel with the parameters
        assert of_training(run, name, "broadcast")[4 * PARAMETERS[kind] + rotary] == 1, training


def gathers_and_scatters(
    units: dict[int, int], kept: tuple[int, ...], itemsize: int, batches: int = 1
) -> tuple[dict[int, int], dict[int, int]]:
    """Gathered and scattered bytes -> how often, in STEPS steps of so many batches each.

    units: parameters of a unit -> how many such there are; each is gathered forward and backward. kept: parameters of
    units that stay gathered between the two.
    """
    gathered = {itemsize * unit: 2 * count * batches * STEPS for unit, count in units.items()}
    scattered = {itemsize * unit: count * STEPS for unit, count in units.items()}
    gathered.update({itemsize * unit: batches * STEPS for unit in kept})
    scattered.update({itemsize * unit: STEPS for unit in kept})
    return gathered, scattered


def test_fsdp(tmp_path: Path) -> None:
    """Zhao et al. (2023), section 3.2. Parameters are gathered in the dtype of computing, for the forward and the
    backward pass (the outermost unit once: it is not resharded between), also by checkpointing (which recomputes inside
    the backward pass) and for each batch that is accumulated; gradients are reduce-scattered in it once per step. With
    version 1, the norm of gradients is all-reduced (4 bytes), and a ShardedGradScaler's flag of overflow. accelerate's
    version 2 shards the embedding apart.
    """
    embedding = V * D
    t5_units = {T5_ENCODER + T5_POSITIONS: 1, T5_ENCODER: 1, T5_DECODER + T5_POSITIONS: 1, T5_DECODER: 1}
    positions = 256 * D

    def fsdp2(layer: int) -> tuple[dict[int, int], dict[int, int]]:
        return gathers_and_scatters({layer: L, embedding: 1}, (embedding + D,), 2)

    expected = {
        "llama,fsdp=1": gathers_and_scatters({LLAMA_LAYER: L}, (UNTIED,), 2),
        "llama,fsdp=2": fsdp2(LLAMA_LAYER),
        "llama,fsdp=1,precision=fp16,checkpointing=1,optim=adamw_torch": gathers_and_scatters(
            {LLAMA_LAYER: L}, (UNTIED,), 2
        ),
        "mixtral,fsdp=2,checkpointing=1": fsdp2(MIXTRAL_LAYER),
        # The embedding, tied to the head, stays with the outermost unit; positions, an embedding as well, are apart.
        "gpt2,fsdp=2": gathers_and_scatters({BLOCK: L}, (embedding + 2 * D, positions), 2),
        "t5,fsdp=1": gathers_and_scatters(t5_units, (T5_REST,), 2),
        "bert,fsdp=1,accumulate=2": gathers_and_scatters({BLOCK: L}, (BERT_REST,), 2, batches=2),
        "vit,fsdp=1,precision=fp32": gathers_and_scatters({BLOCK: L}, (VIT_REST,), 4),
    }
    run = record(tmp_path, 2, SCRIPT, *(f"{training},out={tmp_path / 'trainer'}" for training in expected))
    for training, sizes in expected.items():
        name = f"{training},out={tmp_path / 'trainer'}"
        gathered, scattered = (of_training(run, name, kind, at_least=1024) for kind in ("all_gather", "reduce_scatter"))
        assert (gathered, scattered) == sizes, training
        if "fsdp=1" in training:
            assert of_training(run, name, "all_reduce") == {4: 2 * STEPS if "fp16" in training else STEPS}, training


def test_accelerate_launch_gives_the_same(tmp_path: Path) -> None:
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
    run = record(tmp_path, 2, "", command=(*launcher, SCRIPT, f"llama,out={tmp_path / 'trainer'}"))
    assert volume(run, "all_reduce", (0, 1), at_least=1024) == STEPS * 4 * PARAMETERS["llama"]


@pytest.mark.skipif(not SHARED_SCRIPT.exists(), reason=f"{SHARED_SCRIPT} is not there")
def test_script_with_four_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script as somebody wrote it: Llama of 4 layers, FSDP2 with its own checkpointing, 3 steps of two batches
    each. A layer is gathered for the forward and the backward pass of each batch (which recomputes it), and scattered
    once per step (Zhao et al., 2023, section 3.2).
    """
    monkeypatch.chdir(tmp_path)
    run = record(tmp_path, 4, str(SHARED_SCRIPT), "--model", "llama", "--fsdp", "2", "--gc")
    gathered, scattered = communicated(run, "all_gather"), communicated(run, "reduce_scatter")
    assert gathered[2 * LLAMA_LAYER] == 3 * 2 * 2 * 4
    assert scattered[2 * LLAMA_LAYER] == 3 * 4


RESUME = """
import sys, torch, transformers as t
sys.path.insert(0, sys.argv[1]); sys.argv[1:] = []
from hf_trainers import Made, make
def trainer(steps):
    return t.Trainer(make("gpt2"), t.TrainingArguments(output_dir="saved", max_steps=steps, save_steps=2, per_device_train_batch_size=2,
        bf16=True, report_to=[], disable_tqdm=True, eval_strategy="steps", eval_steps=2, logging_steps=1, label_smoothing_factor=0.1),
        train_dataset=Made("gpt2"), eval_dataset=Made("gpt2"), compute_metrics=lambda p: {"shape": p.predictions.shape[-1]})
trainer(2).train()
second = trainer(4)
with torch.cuda.nvtx.range("resumed"):
    second.train(resume_from_checkpoint=True)
    torch.cuda.synchronize()
assert second.state.global_step == 4 and second.state.log_history[-2]["eval_shape"] == 2048, second.state.log_history
assert second.predict(Made("gpt2")).predictions.shape == (64, 64, 2048)
model = second.accelerator.unwrap_model(second.model)
if second.is_world_process_zero():
    model.save_pretrained("model", max_shard_size="2MB")
torch.distributed.barrier()
again = t.AutoModelForCausalLM.from_pretrained("model", dtype=torch.bfloat16, device_map={"": torch.cuda.current_device()})
assert sum(p.numel() for p in again.parameters()) == sum(p.numel() for p in model.parameters())
print("done", flush=True)
"""


def test_checkpoint_is_resumed_evaluated_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four steps the second Trainer runs two (its all-reduces count them); logits and labels of evaluation are
    gathered.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resume.py").write_text(RESUME)
    run = record(tmp_path / "out", 2, str(tmp_path / "resume.py"), str(Path(SCRIPT).parent))
    assert total(of_training(run, "resumed", "all_reduce", at_least=1024)) == 2 * 4 * PARAMETERS["gpt2"]
    # 64 samples in batches of 8 on each of two ranks: 4 gathers of float32 logits (16, 64, 2048).
    assert of_training(run, "resumed", "all_gather")[16 * 64 * 2048 * 4] == 4
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"checkpoint-2", "checkpoint-4"}
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
