"""transformers' Trainer, once for each argument `MODEL,key=value,...`, all in one process; each run is an NVTX range of
its own.

Keys: fsdp (1 or 2), precision (bf16, fp16, fp32), accumulate (batches per step), checkpointing (1), out (folder;
default: ./trainer).
"""

import sys

import torch
import transformers as t
from torch.utils.data import Dataset

VOCABULARY, LENGTH = 2048, 64
SMALL = dict(vocab_size=VOCABULARY, hidden_size=256, num_hidden_layers=2, num_attention_heads=8)
LAYERS = dict(
    llama="LlamaDecoderLayer",
    mixtral="MixtralDecoderLayer",
    gpt2="GPT2Block",
    bert="BertLayer",
    vit="ViTLayer",
    t5="T5Block",
)


def make(kind: str) -> t.PreTrainedModel:
    if kind == "llama":
        return t.LlamaForCausalLM(t.LlamaConfig(**SMALL, intermediate_size=688, num_key_value_heads=4, use_cache=False))
    if kind == "mixtral":
        return t.MixtralForCausalLM(
            t.MixtralConfig(**SMALL, intermediate_size=512, num_key_value_heads=4, num_local_experts=4, use_cache=False)
        )
    if kind == "gpt2":
        return t.GPT2LMHeadModel(
            t.GPT2Config(vocab_size=VOCABULARY, n_embd=256, n_layer=2, n_head=8, n_positions=256, use_cache=False)
        )
    if kind == "bert":
        return t.BertForMaskedLM(t.BertConfig(**SMALL, intermediate_size=1024))
    if kind == "vit":
        return t.ViTForImageClassification(
            t.ViTConfig(
                hidden_size=256,
                num_hidden_layers=2,
                num_attention_heads=8,
                intermediate_size=1024,
                image_size=64,
                patch_size=8,
                num_labels=10,
            )
        )
    assert kind == "t5", kind
    return t.T5ForConditionalGeneration(
        t.T5Config(
            vocab_size=VOCABULARY,
            d_model=256,
            d_kv=32,
            d_ff=1024,
            num_layers=2,
            num_heads=8,
            decoder_start_token_id=0,
            use_cache=False,
        )
    )


class Made(Dataset):
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        if self.kind == "vit":
            return {
                "pixel_values": torch.randn(3, 64, 64, generator=generator),
                "labels": torch.randint(0, 10, (), generator=generator),
            }
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=generator)
        return {"input_ids": ids, "labels": ids, "attention_mask": torch.ones(LENGTH, dtype=torch.long)}


def arguments(kind: str, options: dict[str, str]) -> t.TrainingArguments:
    more = {}
    if "fsdp" in options:
        wrapped = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "transformer_layer_cls_to_wrap": [LAYERS[kind]]}
        more = dict(fsdp=True, fsdp_config={"version": int(options["fsdp"]), **wrapped})
    precision = options.get("precision", "bf16")
    return t.TrainingArguments(
        output_dir=options.get("out", "trainer"), max_steps=2, per_device_train_batch_size=2,
        gradient_accumulation_steps=int(options.get("accumulate", 1)), optim=options.get("optim", "adamw_torch_fused"),
        bf16=precision == "bf16", fp16=precision == "fp16", gradient_checkpointing="checkpointing" in options,
        logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, **more,
    )  # fmt: skip


def main() -> None:
    for argument in sys.argv[1:]:
        kind, *words = argument.split(",")
        options = dict(word.split("=") for word in words)
        trainer = t.Trainer(make(kind), arguments(kind, options), train_dataset=Made(kind))
        with torch.cuda.nvtx.range(argument):
            trainer.train()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main()
