"""Hugging Face Trainer: Llama, bf16, gradient checkpointing, DDP under the launcher."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (256,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def main():
    config = LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4)
    arguments = TrainingArguments(
        tempfile.mkdtemp(), per_device_train_batch_size=4, max_steps=3, bf16=True, logging_steps=1, save_strategy="no",
        report_to=[], gradient_checkpointing=True, dataloader_num_workers=1, max_grad_norm=1.0,
    )
    result = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Tokens()).train()
    assert result.global_step == 3
    print("done", flush=True)


if __name__ == "__main__":
    main()
