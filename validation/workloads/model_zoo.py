"""Training steps of models that no constant was fitted on: prints one JSON line for each case.

usage: python model_zoo.py [--case NAME ...] [--steps 8] [--warmup 3] [--profile DIR] | --list

As a user would write them: transformers' models with random weights, synthetic data made on the CPU and copied each step,
mixed precision by autocast. `python -m phantora.validation hardware --workloads model_zoo.py --cases FILE` runs them
simulated. With --profile one more step is profiled: busy time, kernels, and DIR/<case>.ops.json with the operators by shape.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]
Made = tuple[nn.Module, Step]
CASES: dict[str, Callable[[], Made]] = {}


def case(name: str) -> Callable[[Callable[[], Made]], Callable[[], Made]]:
    def register(make: Callable[[], Made]) -> Callable[[], Made]:
        CASES[name] = make
        return make

    return register


def to_gpu(tensor: Tensor) -> Tensor:
    return tensor.pin_memory().to("cuda", non_blocking=True)


def trained(
    model: nn.Module,
    loss_of: Callable[[], Tensor],
    *,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = torch.bfloat16,
    clip: float | None = 1.0,
) -> Made:
    """One optimizer step; `dtype` of autocast (float16 with a GradScaler; None: as the model is)."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)

    def step() -> float:
        with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = loss_of()
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return model.train(), step


def language(config: Any, batch: int, seq: int, *, pure: bool = False, kind: str = "AutoModelForCausalLM", **more: Any) -> Made:
    import transformers

    config.use_cache = False
    with torch.device("cuda"):
        model = getattr(transformers, kind).from_config(config, dtype=torch.bfloat16 if pure else torch.float32)

    def loss_of() -> Tensor:
        tokens = to_gpu(torch.randint(3, config.vocab_size, (batch, seq)))
        return model(input_ids=tokens, labels=tokens).loss

    return trained(model, loss_of, **({"dtype": None} if pure else {}) | more)


def vision(config: Any, batch: int, *, size: int = 224, channels_last: bool = False, kind: str = "AutoModelForImageClassification", **more: Any) -> Made:
    """Images stay on the GPU: the step must not wait for a CPU that draws them."""
    import transformers

    config.num_labels = 1000
    model = getattr(transformers, kind).from_config(config).to("cuda")
    images = torch.randn(batch, 3, size, size, device="cuda")
    if channels_last:
        model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    return trained(model, lambda: F.cross_entropy(model(images).logits.float(), labels), clip=None, **more)


@case("qwen2-1.5b-b2-s2048-bf16")
def _qwen2() -> Made:
    from transformers import Qwen2Config

    config = Qwen2Config(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12,
                         num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True)  # fmt: skip
    return language(config, 2, 2048, pure=True)


@case("gemma2-2b-b1-s2048")
def _gemma2() -> Made:
    from transformers import Gemma2Config

    return language(Gemma2Config(attn_implementation="eager"), 1, 2048, pure=True)


@case("pythia-410m-b8-s1024-fp16")
def _pythia() -> Made:
    from transformers import GPTNeoXConfig

    config = GPTNeoXConfig(hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16)
    return language(config, 8, 1024, dtype=torch.float16)


@case("opt-1.3b-b4-s2048")
def _opt() -> Made:
    from transformers import OPTConfig

    config = OPTConfig(hidden_size=2048, ffn_dim=8192, num_hidden_layers=24, num_attention_heads=32, word_embed_proj_dim=2048)
    return language(config, 4, 2048)


@case("qwen3-moe-small-b4-s1024")
def _qwen3_moe() -> Made:
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(hidden_size=1024, intermediate_size=3072, moe_intermediate_size=512, num_hidden_layers=8, head_dim=64,
                            num_attention_heads=16, num_key_value_heads=4, num_experts=16, num_experts_per_tok=4, vocab_size=32000)  # fmt: skip
    return language(config, 4, 1024, pure=True)


@case("roberta-base-b64-s128")
def _roberta() -> Made:
    from transformers import RobertaConfig

    return language(RobertaConfig(), 64, 128, kind="AutoModelForMaskedLM")


@case("deberta-v2-base-b16-s256")
def _deberta() -> Made:
    from transformers import DebertaV2Config

    config = DebertaV2Config(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
                             relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"])  # fmt: skip
    return language(config, 16, 256, kind="AutoModelForMaskedLM")


@case("bart-large-b8-s512")
def _bart() -> Made:
    from transformers import BartConfig

    return language(BartConfig(), 8, 512, kind="AutoModelForSeq2SeqLM")


@case("whisper-small-b16")
def _whisper() -> Made:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
                           encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False)  # fmt: skip
    model = WhisperForConditionalGeneration(config).to("cuda")
    heard = torch.randn(16, 80, 3000, device="cuda")

    def loss_of() -> Tensor:
        return model(input_features=heard, labels=to_gpu(torch.randint(3, config.vocab_size, (16, 128)))).loss

    return trained(model, loss_of)


@case("wav2vec2-base-b8-10s")
def _wav2vec2() -> Made:
    """CTC fine-tuning without SpecAugment and layer drop."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    model = Wav2Vec2ForCTC(Wav2Vec2Config(apply_spec_augment=False, layerdrop=0.0, ctc_loss_reduction="mean")).to("cuda")
    heard = torch.randn(8, 160_000, device="cuda")
    labels = torch.randint(1, 32, (8, 100), device="cuda")
    return trained(model, lambda: model(input_values=heard, labels=labels).loss)


@case("convnext-base-b64")
def _convnext() -> Made:
    from transformers import ConvNextConfig

    return vision(ConvNextConfig(hidden_sizes=[128, 256, 512, 1024], depths=[3, 3, 27, 3]), 64)


@case("swin-base-b64")
def _swin() -> Made:
    from transformers import SwinConfig

    return vision(SwinConfig(embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]), 64)


@case("mobilenet-v2-b256-channels-last")
def _mobilenet() -> Made:
    from transformers import MobileNetV2Config

    return vision(MobileNetV2Config(), 256, channels_last=True)


@case("resnet18-b256-fp32")
def _resnet18() -> Made:
    from transformers import ResNetConfig

    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
    return vision(config, 256, dtype=None)


@case("segformer-b2-b16-512")
def _segformer() -> Made:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(hidden_sizes=[64, 128, 320, 512], depths=[3, 4, 6, 3], decoder_hidden_size=768, num_labels=150)
    model = SegformerForSemanticSegmentation(config).to("cuda")
    images = torch.randn(16, 3, 512, 512, device="cuda")
    labels = torch.randint(0, 150, (16, 512, 512), device="cuda")
    return trained(model, lambda: model(pixel_values=images, labels=labels).loss)


@case("mistral-7b-4layers-window-b1-s8192-bf16")
def _mistral() -> Made:
    from transformers import MistralConfig

    return language(MistralConfig(num_hidden_layers=4, sliding_window=4096, max_position_embeddings=8192), 1, 8192, pure=True)


@case("phi-1.5-b4-s1024")
def _phi() -> Made:
    from transformers import PhiConfig

    return language(PhiConfig(resid_pdrop=0.1), 4, 1024)


@case("bloom-560m-b8-s512")
def _bloom() -> Made:
    from transformers import BloomConfig

    return language(BloomConfig(hidden_size=1024, n_layer=24, n_head=16, vocab_size=250880), 8, 512)


@case("gptj-6b-4layers-b2-s2048-fp16-ckpt")
def _gptj() -> Made:
    from transformers import GPTJConfig

    model, step = language(GPTJConfig(n_layer=4), 2, 2048, dtype=torch.float16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, step


@case("xlm-roberta-large-b16-s256")
def _xlm_roberta() -> Made:
    from transformers import XLMRobertaConfig

    config = XLMRobertaConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
                              vocab_size=250002)  # fmt: skip
    return language(config, 16, 256, kind="AutoModelForMaskedLM")


@case("t5-small-b64-s128")
def _t5() -> Made:
    from transformers import T5Config

    return language(T5Config(use_cache=False, decoder_start_token_id=0), 64, 128, kind="AutoModelForSeq2SeqLM")


@case("clip-b32-b256")
def _clip() -> Made:
    from transformers import CLIPConfig, CLIPModel

    model = CLIPModel(CLIPConfig()).to("cuda")
    images = torch.randn(256, 3, 224, 224, device="cuda")
    texts = torch.randint(0, 49000, (256, 77), device="cuda")
    return trained(model, lambda: model(input_ids=texts, pixel_values=images, return_loss=True).loss)


@case("dinov2-base-b64")
def _dinov2() -> Made:
    from transformers import Dinov2Config

    return vision(Dinov2Config(), 64)


@case("videomae-base-b8")
def _videomae() -> Made:
    from transformers import VideoMAEConfig, VideoMAEForVideoClassification

    model = VideoMAEForVideoClassification(VideoMAEConfig(num_labels=400)).to("cuda")
    clips, labels = torch.randn(8, 16, 3, 224, 224, device="cuda"), torch.randint(0, 400, (8,), device="cuda")
    return trained(model, lambda: model(pixel_values=clips, labels=labels).loss)


@case("efficientnet-b0-b128-channels-last")
def _efficientnet() -> Made:
    from transformers import EfficientNetConfig

    config = EfficientNetConfig(image_size=224, width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280, dropout_rate=0.2)
    return vision(config, 128, channels_last=True)


@case("regnet-y-4gf-b64")
def _regnet() -> Made:
    from transformers import RegNetConfig

    config = RegNetConfig(depths=[2, 6, 12, 2], hidden_sizes=[128, 192, 512, 1088], groups_width=64, layer_type="y")
    return vision(config, 64)


@case("resnet152-b32-channels-last-fp16")
def _resnet152() -> Made:
    from transformers import ResNetConfig

    return vision(ResNetConfig(depths=[3, 8, 36, 3]), 32, channels_last=True, dtype=torch.float16)


@case("llama-350m-b8-s1024-adamw-fused-compiled")
def _llama_compiled() -> Made:
    from transformers import LlamaConfig

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=16, num_attention_heads=16)
    model, step = language(config, 8, 1024)
    model.compile()
    return model, step


class RecurrentLanguageModel(nn.Module):
    """The LSTM of Zaremba et al. (2014): embedding, two layers, tied sizes."""

    def __init__(self, units: int, vocab: int = 10_000) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab, units), nn.Linear(units, vocab)
        self.lstm = nn.LSTM(units, units, num_layers=2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


@case("lstm-2x1500-b64-s35-fp32")
def _lstm() -> Made:
    model = RecurrentLanguageModel(1500).to("cuda")

    def loss_of() -> Tensor:
        tokens = to_gpu(torch.randint(0, 10_000, (36, 64)))
        return F.cross_entropy(model(tokens[:-1]).flatten(0, 1), tokens[1:].flatten())

    return trained(model, loss_of, optimizer=torch.optim.SGD(model.parameters(), lr=1.0), dtype=None)


@case("gru-speech-b32-s400")
def _gru() -> Made:
    """Deep Speech 2 like: three bidirectional layers of 768 units."""
    gru, head = nn.GRU(768, 768, num_layers=3, bidirectional=True), nn.Linear(1536, 29)
    model = nn.ModuleList((gru, head)).to("cuda")
    heard = torch.randn(400, 32, 768, device="cuda")
    labels = torch.randint(1, 29, (32, 60), device="cuda")
    lengths = torch.full((32,), 400), torch.full((32,), 60)

    def loss_of() -> Tensor:
        return F.ctc_loss(head(gru(heard)[0]).float().log_softmax(-1), labels, *lengths)

    return trained(model, loss_of)


@case("dcn-64tables-b8192")
def _dcn() -> Made:
    """Deep & cross network v2: 64 sparse tables, three cross layers of full rank, Adagrad on the tables."""
    tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(64))
    width = 65 * 64
    dense, crosses = nn.Linear(13, 64), nn.ModuleList(nn.Linear(width, width) for _ in range(3))
    top = nn.Sequential(nn.Linear(width, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1))
    model = nn.ModuleList((tables, dense, crosses, top)).to("cuda")

    def loss_of() -> Tensor:
        numbers, clicked = to_gpu(torch.randn(8192, 13)), to_gpu(torch.rand(8192))
        indices = to_gpu(torch.randint(0, 200_000, (64, 8192, 2)))
        first = torch.cat([dense(numbers), *(table(index) for table, index in zip(tables, indices))], dim=1)
        x = first
        for cross in crosses:
            x = first * cross(x) + x
        return F.binary_cross_entropy_with_logits(top(x).float().squeeze(1), clicked)

    return trained(model, loss_of, optimizer=torch.optim.Adagrad(model.parameters(), lr=0.01), clip=None)


@case("dcgan-generator-b128-fp32")
def _dcgan() -> Made:
    """Transposed convolutions, batch norm; discriminator of the mirrored shape."""
    generator, discriminator, channels = [], [], [100, 1024, 512, 256, 128, 3]
    for index, (narrow, wide) in enumerate(zip(channels[1:], channels)):
        generator += [nn.ConvTranspose2d(wide, narrow, 4, 1 if index == 0 else 2, 0 if index == 0 else 1, bias=False)]
        generator += [nn.Tanh()] if narrow == 3 else [nn.BatchNorm2d(narrow), nn.ReLU(True)]
    for narrow, wide in ((3, 128), (128, 256), (256, 512), (512, 1024)):
        discriminator += [nn.Conv2d(narrow, wide, 4, 2, 1, bias=False), nn.BatchNorm2d(wide), nn.LeakyReLU(0.2, True)]
    model = nn.Sequential(*generator, *discriminator, nn.Conv2d(1024, 1, 4, 1, 0, bias=False)).to("cuda")
    wanted = torch.ones(128, device="cuda")

    def loss_of() -> Tensor:
        noise = torch.randn(128, 100, 1, 1, device="cuda")
        return F.binary_cross_entropy_with_logits(model(noise).flatten(), wanted)

    return trained(model, loss_of, optimizer=torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)), dtype=None, clip=None)


def timed_ms(step: Step) -> float:
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    model, step = CASES[name]()
    for _ in range(options.warmup):
        step()
    torch.cuda.synchronize()
    times_ms = sorted(timed_ms(step) for _ in range(options.steps))
    record = {
        "case": name,
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "step_ms": round(times_ms[len(times_ms) // 2], 3),
        "min_ms": round(times_ms[0], 3),
        "max_ms": round(times_ms[-1], 3),
        "max_allocated_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1),
        "max_reserved_mib": round(torch.cuda.max_memory_reserved() / 2**20, 1),
    }
    return record | profiled(name, step, options.profile) if options.profile else record


def profiled(name: str, step: Step, folder: Path) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        timed_ms(step)
    spans = sorted((e.time_range.start, e.time_range.end) for e in profiler.events() if is_kernel(e))
    busy_us, until = 0.0, float("-inf")
    for start, end in spans:
        busy_us += max(0.0, end - max(start, until))
        until = max(until, end)
    rows = [
        {"op": row.key, "shapes": str(row.input_shapes), "count": row.count, "device_us": round(row.self_device_time_total, 1)}
        for row in profiler.key_averages(group_by_input_shape=True)
        if row.self_device_time_total > 0
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.ops.json").write_text(json.dumps(sorted(rows, key=lambda row: -row["device_us"])))
    return {"kernels": len(spans), "gpu_busy_ms": round(busy_us / 1e3, 3), "gpu_span_ms": round((spans[-1][1] - spans[0][0]) / 1e3, 3)}


def is_kernel(event: Any) -> bool:
    """On the GPU, and no annotation's shadow there (Optimizer.step spans the gaps between its kernels)."""
    return event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--profile", type=Path, metavar="DIR")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list:
        print("\n".join(CASES))
        return
    for name in options.case or CASES:
        try:
            record = run(name, options)
        except Exception as error:  # the other cases shall still run
            record = {"case": name, "error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(record), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
