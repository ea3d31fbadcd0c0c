"""Prefill and decode of transformers' generate(): one line of JSON for each model, batch and prompt.

usage: python generate_bench.py          (a GPU, or under `phantora record-and-simulate`)

prefill_ms: generate() of one token; decode_ms: each of 32 further ones, greedy, dynamic cache, bf16. peak_mib: allocated
since the model was made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import torch
import transformers

SIZES = ((1, 128), (8, 512), (32, 512), (1, 4096))  # batch, prompt
MORE_TOKENS = 32


def models() -> Iterator[tuple[str, torch.nn.Module]]:
    llama = transformers.LlamaConfig
    yield "llama-1b", transformers.LlamaForCausalLM(
        llama(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8)
    )
    yield "gpt2-124m", transformers.GPT2LMHeadModel(transformers.GPT2Config())
    yield "llama2-7b", transformers.LlamaForCausalLM(
        llama(vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32)
    )


def seconds(work: Callable[[], object]) -> float:
    """Median of three."""
    taken = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    return sorted(taken)[1]


def measure(name: str, model: torch.nn.Module, batch: int, prompt: int) -> None:
    ids = torch.randint(0, 30000, (batch, prompt))
    mask = torch.ones_like(ids)

    def generate(tokens: int) -> Callable[[], object]:
        return lambda: model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False)  # type: ignore[operator]

    generate(4)()
    prefill_s, all_s = seconds(generate(1)), seconds(generate(1 + MORE_TOKENS))
    row = {"model": name, "batch": batch, "prompt": prompt, "prefill_ms": round(prefill_s * 1e3, 3)}
    row |= {"decode_ms": round((all_s - prefill_s) / MORE_TOKENS * 1e3, 3), "peak_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1)}
    print(json.dumps(row), flush=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        for name, model in models():
            model.eval()
            model.generation_config.eos_token_id = None  # type: ignore[union-attr]
            model.generation_config.pad_token_id = 0  # type: ignore[union-attr]
            for batch, prompt in SIZES:
                if not name.startswith("gpt2") or prompt < 1024:
                    measure(name, model, batch, prompt)
            del model
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
