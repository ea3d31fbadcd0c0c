"""transformers' Trainer and accelerate from their own entry points; what they communicate against formulas."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from recording import communicated, record, volume

pytestmark = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")

STEPS, VOCABULARY, D, F, LAYERS = 2, 2048, 256, 688, 2
# Llama with grouped keys: 8 heads, 4 of keys and values; q and o: d x d, k and v: d x d/2; SwiGLU; two norms.
LAYER = 3 * D * D + 3 * D * F + 2 * D
OTHERS = 2 * VOCABULARY * D + D
PARAMETERS = LAYERS * LAYER + OTHERS

TRAIN = """
import sys, torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
import transformers as t
kind, options = sys.argv[1], dict(word.split("=") for word in sys.argv[2:])
V, S = 2048, 64
small = dict(vocab_size=V, hidden_size=256, num_hidden_layers=2, num_attention_heads=8)
if kind == "llama":
    model = t.LlamaForCausalLM(t.LlamaConfig(**small, intermediate_size=688, num_key_value_heads=4, use_cache=False))
elif kind == "mixtral":
    model = t.MixtralForCausalLM(t.MixtralConfig(**small, intermediate_size=512, num_key_value_heads=4, num_local_experts=4, use_cache=False))
elif kind == "gpt2":
    model = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=V, n_embd=256, n_layer=2, n_head=8, n_positions=256, use_cache=False))
elif kind == "bert":
    model = t.BertForMaskedLM(t.BertConfig(**small, intermediate_size=1024))
elif kind == "vit":
    model = t.ViTForImageClassification(t.ViTConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=8, intermediate_size=1024, image_size=64, patch_size=8, num_labels=10))
elif kind == "t5":
    model = t.T5ForConditionalGeneration(t.T5Config(vocab_size=V, d_model=256, d_kv=32, d_ff=1024, num_layers=2, num_heads=8, use_cache=False))
layer = {"llama": "LlamaDecoderLayer", "mixtral": "MixtralDecoderLayer", "gpt2": "GPT2Block", "bert": "BertLayer", "vit": "ViTLayer", "t5": "T5Block"}[kind]
class Made(Dataset):
    def __len__(self): return 64
    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        if kind == "vit":
            return {"pixel_values": torch.randn(3, 64, 64, generator=g), "labels": torch.randint(0, 10, (), generator=g)}
        x = torch.randint(0, V, (S,), generator=g)
        return {"input_ids": x, "labels": x, "attention_mask": torch.ones(S, dtype=torch.long)}
more = {}
if "fsdp" in options:
    more = dict(fsdp=True, fsdp_config={"version": int(options["fsdp"]), "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": [layer]})
precision = options.get("precision", "bf16")
arguments = TrainingArguments(
    output_dir=options["out"], max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=int(options.get("accumulate", 1)),
    bf16=precision == "bf16", fp16=precision == "fp16", logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
    gradient_checkpointing="checkpointing" in options, **more)
trainer = Trainer(model, arguments, train_dataset=Made())
trainer.train()
print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
"""


@pytest.fixture
def train(tmp_path: Path):
    """train(ranks, 'llama', 'fsdp=1', ...) -> (Run, parameters that rank 0 counted)"""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def run(nproc: int, *arguments: str, command: tuple[str, ...] = ()):
        given = (*arguments, f"out={tmp_path / 'trainer'}")
        if command:
            recorded = record(tmp_path / "out", nproc, "", command=(*command, str(script), *given))
        else:
            recorded = record(tmp_path / "out", nproc, str(script), *given)
        return recorded

    return run


def test_ddp_all_reduces_fp32_gradients_once_per_step(train) -> None:
    """Ring or not, each step all-reduces 4 bytes per parameter (Li et al., 2020, PyTorch Distributed, section 3.2), once however
    many batches are accumulated; the first rank's parameters are broadcast at the start.
    """
    run = train(2, "llama", "accumulate=2", "precision=bf16")
    assert volume(run, "all_reduce", (0, 1), at_least=4096) == STEPS * 4 * PARAMETERS
    assert volume(run, "broadcast", (0, 1), at_least=4096) == 4 * PARAMETERS + 2 * 4 * 16  # and two buffers of rotary frequencies


@pytest.mark.parametrize("version", ["1", "2"])
def test_fsdp(train, version: str) -> None:
    """Zhao et al. (2023), section 3.2. Parameters are gathered in bf16 for the forward and the backward pass (the outermost unit
    once: it is not resharded between), gradients are reduce-scattered once, in bf16 too. accelerate's FSDP2 shards the embedding apart.
    """
    run = train(2, "llama", f"fsdp={version}")
    gathers, scatters = communicated(run, "all_gather", (0, 1)), communicated(run, "reduce_scatter", (0, 1))
    embedding = VOCABULARY * D
    outer = {"1": {2 * OTHERS: STEPS}, "2": {2 * embedding: 2 * STEPS, 2 * (embedding + D): STEPS}}[version]
    assert {size: count for size, count in gathers.items() if size > 4096} == {2 * LAYER: 2 * LAYERS * STEPS, **outer}
    assert scatters == {2 * LAYER: LAYERS * STEPS, **{size: STEPS for size in outer}}


def test_accelerate_launch_gives_the_same(train) -> None:
    launcher = (sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                "--mixed_precision", "no", "--dynamo_backend", "no")  # fmt: skip
    run = train(2, "llama", command=launcher)
    assert volume(run, "all_reduce", (0, 1), at_least=4096) == STEPS * 4 * PARAMETERS
