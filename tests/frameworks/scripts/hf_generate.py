"""generate() of a Llama with two wide layers, in bfloat16: each call is an NVTX range `NAME NEW_TOKENS`; numbers of
tokens are asserted.
"""

import sys

import torch
import transformers as t

BATCH, PROMPT, VOCABULARY, EOS = 8, 2048, 4096, 2
config = t.LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=4096, intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8,
    eos_token_id=EOS, pad_token_id=0,
)  # fmt: skip
with torch.device("cuda"):
    model = t.LlamaForCausalLM(config).to(torch.bfloat16).eval()
prompt = torch.randint(3, VOCABULARY, (BATCH, PROMPT)).cuda()
whole = torch.ones_like(prompt)
padded = whole.clone()
padded[0, :100] = 0  # on the left
KINDS = {
    "dynamic": dict(do_sample=False),
    "static": dict(do_sample=False, cache_implementation="static", disable_compile=True),
    "sampled": dict(do_sample=True, top_k=50, top_p=0.9, temperature=0.7),
    "padded": dict(do_sample=False, attention_mask=padded),
    "beams": dict(do_sample=False, num_beams=2),
}
with torch.inference_mode():
    for name in sys.argv[1:]:
        for new in (1, 9):
            torch.cuda.synchronize()
            with torch.cuda.nvtx.range(f"{name} {new}"):
                out = model.generate(prompt, max_new_tokens=new, **{"attention_mask": whole, **KINDS[name]})
                torch.cuda.synchronize()
            assert out.shape == (BATCH, PROMPT + new) or name == "beams", out.shape
    tokens, finished, steps, past = (
        prompt,
        torch.zeros(BATCH, dtype=torch.bool, device="cuda"),
        0,
        None,
    )  # a loop of one's own
    while not finished.all() and steps < 5:
        result = model(tokens, past_key_values=past, use_cache=True)
        past, tokens = result.past_key_values, result.logits[:, -1].argmax(-1, keepdim=True)
        finished |= tokens[:, 0] == EOS
        steps += 1
    assert steps == 5
