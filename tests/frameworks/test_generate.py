"""transformers' generate() with a KV cache, and attention over pages: times against FLOPs and bytes."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import pytest
from recording import launches, record

from phantora.trace.model import Run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)

SCRIPTS = Path(__file__).parent / "scripts"
PEAK_FLOPS_PER_S, BYTES_PER_S = 989.4e12, 3.35e12  # H100 SXM5 data sheet: dense bfloat16, HBM3
BATCH, PROMPT, NEW, V, D, F, L, HEADS, KV_WIDTH = 8, 2048, 8, 4096, 4096, 14336, 2, 32, 8 * 128
LAYER = 2 * D * D + 2 * D * KV_WIDTH + 3 * D * F  # parameters of a layer's products


def kernels(run: Run, name: str) -> Counter[tuple[str, str]]:
    """(family, operator) -> summed nanoseconds of its kernels in the NVTX range `name`."""
    trace, found = run.ranks[0], Counter[tuple[str, str]]()
    opened = list(trace.mark_name).index(name)
    begin, end = trace.mark_ns[opened], trace.mark_ns[opened + 1]
    for number, start, stop in zip(trace.signature, trace.start_ns, trace.end_ns):
        if begin <= start <= end:
            found[run.signatures[number].family, run.signatures[number].name.removeprefix("aten::")] += stop - start
    return found


def duration_ns(run: Run, name: str) -> int:
    opened = list(run.ranks[0].mark_name).index(name)
    return run.ranks[0].mark_ns[opened + 1] - run.ranks[0].mark_ns[opened]


def family_ns(counts: Counter[tuple[str, str]], family: str) -> int:
    return sum(time for (its_family, _), time in counts.items() if its_family == family)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return record(
        tmp_path_factory.mktemp("generate"),
        1,
        str(SCRIPTS / "hf_generate.py"),
        "dynamic",
        "static",
        "sampled",
        "padded",
        "beams",
    )


def test_prefill_is_bound_by_its_products(run: Run) -> None:
    """2 FLOP for each parameter and token (Kaplan et al., 2020, section 2.1; the head sees the last token only), at 55
    to 95 % of the data sheet's peak, as measured H200 products of this size; they are over half of the whole call.
    """
    products_ns = family_ns(kernels(run, "dynamic 1"), "gemm")
    ideal_ns = 2 * (L * LAYER * BATCH * PROMPT + BATCH * V * D) / PEAK_FLOPS_PER_S * 1e9
    assert 1 / 0.95 < products_ns / ideal_ns < 1 / 0.55
    assert 0.5 < products_ns / duration_ns(run, "dynamic 1") < 1


@pytest.mark.parametrize("kind", ["dynamic", "static", "sampled", "padded"])
def test_decoding_reads_weights_and_cache(run: Run, kind: str) -> None:
    """A token costs at least the reading of all weights, and of keys and values of all tokens so far (Pope et al.,
    2023, Efficiently Scaling Transformer Inference, section 2): products within a factor of 1.6 of the weights' bytes
    at the data sheet's bandwidth; attention within 2.5 of the cache's where transformers folds the queries of a group
    into rows (it does with a mask), within 5 where each query head reads by itself.
    """
    one, nine = kernels(run, f"{kind} 1"), kernels(run, f"{kind} 9")
    products_ns, attention_ns = (
        (family_ns(nine, family) - family_ns(one, family)) / NEW for family in ("gemm", "attention")
    )
    weights_ns = 2 * (L * LAYER + V * D) / BYTES_PER_S * 1e9
    assert 1 < products_ns / weights_ns < 1.6
    cache_ns = 2 * L * 2 * BATCH * PROMPT * KV_WIDTH / BYTES_PER_S * 1e9
    assert 1 < attention_ns / cache_ns < (2.5 if kind in ("static", "padded") else 5)
    assert duration_ns(run, f"{kind} 9") - duration_ns(run, f"{kind} 1") > NEW * (products_ns + attention_ns)


def test_a_growing_cache_is_copied_and_a_static_one_is_not(run: Run) -> None:
    """DynamicCache concatenates: keys and values of each layer are read and written again for each token, within a
    factor of 2 of the data sheet's bandwidth. (Rotary embeddings concatenate, too, in both.)
    """
    copied_ns = {
        kind: (kernels(run, f"{kind} 9")["copy", "cat"] - kernels(run, f"{kind} 1")["copy", "cat"]) / NEW
        for kind in ("dynamic", "static")
    }
    cache_ns = 2 * 2 * L * 2 * BATCH * PROMPT * KV_WIDTH / BYTES_PER_S * 1e9
    assert 1 < (copied_ns["dynamic"] - copied_ns["static"]) / cache_ns < 2


def test_beams_decode_as_many_tokens(run: Run) -> None:
    """Two beams: twice the batch; every step reads all weights. Nothing ends before the last token, as no token is that
    of the end.
    """
    products_ns = (family_ns(kernels(run, "beams 9"), "gemm") - family_ns(kernels(run, "beams 1"), "gemm")) / NEW
    assert 1 < products_ns / (2 * (L * LAYER + V * D) / BYTES_PER_S * 1e9) < 1.6


PAGED = """
import torch
from flash_attn import flash_attn_with_kvcache
B, PAGES, SIZE, H, KV, E, LENGTHS = 4, 64, 256, 32, 8, 128, [1000, 300, 2000, 37]
cache = [torch.zeros(PAGES, SIZE, KV, E, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
free, lengths = list(range(PAGES)), torch.tensor(LENGTHS, dtype=torch.int32, device="cuda")
table = torch.zeros(B, max(LENGTHS) // SIZE + 2, dtype=torch.int32, device="cuda")
for row, length in enumerate(LENGTHS):
    for page in range(length // SIZE + 1):
        table[row, page] = free.pop()
for step in range(3):
    # The slot of each new token, from the block table: index operators on known contents.
    page = table.gather(1, (lengths // SIZE).long().unsqueeze(1)).squeeze(1).long()
    slot = page * SIZE + lengths % SIZE
    assert slot.tolist() == [int(table[i, (n + step) // SIZE]) * SIZE + (n + step) % SIZE for i, n in enumerate(LENGTHS)], slot.tolist()
    new = torch.randn(2, B, KV, E, device="cuda", dtype=torch.bfloat16)
    for part, kept in zip(new, cache):
        kept.view(-1, KV, E).index_copy_(0, slot, part)
    q = torch.randn(B, 1, H, E, device="cuda", dtype=torch.bfloat16)
    lengths += 1
    torch.cuda.synchronize()
    with torch.cuda.nvtx.range(f"fused {step}"):
        out = flash_attn_with_kvcache(q, *cache, cache_seqlens=lengths, block_table=table, causal=True)
        torch.cuda.synchronize()
    with torch.cuda.nvtx.range(f"gathered {step}"):
        num_pages = int(lengths.max()) // SIZE + 1  # a wait for the GPU
        k, v = (kept[table[:, :num_pages].flatten()].view(B, -1, KV, E).transpose(1, 2) for kept in cache)
        mask = torch.arange(num_pages * SIZE, device="cuda")[None] < lengths[:, None]
        assert mask.sum(1).tolist() == [n + step + 1 for n in LENGTHS]
        again = torch.nn.functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, mask[:, None, None], enable_gqa=True)
        torch.cuda.synchronize()
    assert out.shape == again.transpose(1, 2).shape == (B, 1, H, E)
"""


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is really installed")
def test_attention_over_pages(tmp_path: Path) -> None:
    """Kwon et al. (2023), PagedAttention, section 4.3: one kernel reads the pages of the block table, no more tokens
    than each sequence has; gathering copies the pages of the longest for everybody.
    """
    (tmp_path / "paged.py").write_text(PAGED)
    run = record(tmp_path / "out", 1, str(tmp_path / "paged.py"))
    assert run.stand_ins == {}  # every read was of known contents
    for step in range(3):
        fused, gathered = kernels(run, f"fused {step}"), kernels(run, f"gathered {step}")
        assert [name for _, name in fused] == ["flash_attn::flash_attention_with_kvcache"]
        assert (
            gathered["indexing", "index"] > 2 * (2 * 4 * 8 * 256 * 8 * 128 * 2) / BYTES_PER_S * 1e9
        )  # read and written
        assert 0 < sum(fused.values()) < sum(gathered.values())
    priced = [s for s in run.signatures if s.name.endswith("with_kvcache")]
    assert {s.inputs[1][1][2] for s in priced} == {
        836,
        837,
        838,
    }  # mean lengths: (1000 + 300 + 2000 + 37 + 4) / 4 = 835.25, rounded up


FLASH = """
import torch, transformers as t
config = t.LlamaConfig(vocab_size=1024, hidden_size=256, intermediate_size=688, num_hidden_layers=2, num_attention_heads=8,
                       num_key_value_heads=4)
model = t.LlamaForCausalLM._from_config(config, attn_implementation="flash_attention_2", dtype=torch.bfloat16).cuda()
ids = torch.randint(0, 1024, (2, 64)).cuda()
model(ids, labels=ids).loss.backward()
padding = torch.ones_like(ids)
padding[0, :10] = 0
model(ids, attention_mask=padding, labels=ids).loss.backward()
"""


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash_attn is really installed")
def test_flash_attention_of_the_stand_in(tmp_path: Path) -> None:
    """transformers looks for the distribution of flash_attn. A padded batch is packed: 2 x 64 - 10 tokens."""
    (tmp_path / "flash.py").write_text(FLASH)
    run = record(tmp_path / "out", 1, str(tmp_path / "flash.py"))
    found = launches(run)
    for direction in ("forward", "backward"):
        assert sum(signature.name == f"flash_attn::flash_attention_{direction}" for signature in found) == 2 * 2
    assert any(
        (2 * 64 - 10) in shape for signature in found if "flash" in signature.name for _, shape in signature.inputs
    )
