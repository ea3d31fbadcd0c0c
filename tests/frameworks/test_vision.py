"""torchvision, timm and diffusers: models of their own, trained by plain PyTorch; gradients against the number of
parameters.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from recording import communicated, kernels, record, volume

# Published sizes: ResNet-50 25,557,032 parameters and 53,120 running means and variances in 53 batch norms (He et al., 2016,
# table 1; torchvision's model page), ViT-B/16 86,567,656 (Dosovitskiy et al., 2021, table 1; torchvision's model page).
RESNET50, RESNET50_BUFFERS, RESNET50_NORMS, VIT_B_16 = 25_557_032, 53_120, 53, 86_567_656

CLASSIFY = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.cuda.set_device(int(os.environ["LOCAL_RANK"])); dist.init_process_group("nccl")
library, name = sys.argv[1:3]
if library == "timm":
    import timm; model = timm.create_model(name)
else:
    import torchvision; model = getattr(torchvision.models, name)()
if "syncbn" in sys.argv: model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
model = DDP(model.cuda().to(memory_format=torch.channels_last), device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), torch.amp.GradScaler("cuda")
for _ in range(2):
    x = torch.randn(4, 3, 224, 224).pin_memory().cuda(non_blocking=True).to(memory_format=torch.channels_last)
    with torch.autocast("cuda", dtype=torch.float16):
        loss = torch.nn.functional.cross_entropy(model(x), torch.randint(0, 1000, (4,)).cuda(), label_smoothing=0.1)
    optimizer.zero_grad(); scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()
"""
UNET = """
import torch
from diffusers import UNet2DConditionModel, DDPMScheduler
with torch.device("cuda"):  # the configuration of Stable Diffusion 1.5
    unet = UNet2DConditionModel(sample_size=64, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2,
                                cross_attention_dim=768, attention_head_dim=8)
assert sum(p.numel() for p in unet.parameters()) == 859_520_964
noise, optimizer = DDPMScheduler(num_train_timesteps=1000), torch.optim.AdamW(unet.parameters(), 1e-4)
x = torch.randn(1, 4, 64, 64, device="cuda"); e = torch.randn_like(x); t = torch.randint(0, 1000, (1,), device="cuda").long()
text = torch.randn(1, 77, 768, device="cuda")
with torch.autocast("cuda", dtype=torch.bfloat16):
    with torch.cuda.nvtx.range("forward"):
        out = unet(noise.add_noise(x, e, t), t, encoder_hidden_states=text).sample
        torch.cuda.synchronize()
    loss = torch.nn.functional.mse_loss(out.float(), e)
loss.backward(); torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0); optimizer.step(); optimizer.zero_grad()
"""
REGIONS = """
import torch
from torchvision.ops import RoIAlign, DeformConv2d, nms
x = torch.randn(2, 16, 32, 32, device="cuda", requires_grad=True)
boxes = torch.rand(10, 5, device="cuda")
pooled = RoIAlign((7, 7), 0.5, 2)(x, boxes)
assert pooled.shape == (10, 16, 7, 7)
deformed = DeformConv2d(16, 8, 3, padding=1).cuda()(x, torch.randn(2, 18, 32, 32, device="cuda"))
assert deformed.shape == (2, 8, 32, 32)
(pooled.sum() + deformed.sum()).backward()
assert x.grad.shape == x.shape
assert nms(boxes[:, 1:], boxes[:, 0], 0.5).shape == (10,)
"""


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "train.py").write_text(text)
    return str(tmp_path / "train.py")


@pytest.mark.parametrize(
    ("library", "model", "parameters"),
    [("torchvision", "resnet50", RESNET50), ("timm", "resnet50", RESNET50), ("torchvision", "vit_b_16", VIT_B_16)],
)
def test_ddp_all_reduces_fp32_gradients(library: str, model: str, parameters: int, tmp_path: Path) -> None:
    """4 bytes per parameter and step (Li et al., 2020, PyTorch Distributed, section 3.2), whatever autocast computes
    in.
    """
    pytest.importorskip("torch")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run = record(tmp_path / "out", 2, write(tmp_path, CLASSIFY), library, model)
    assert volume(run, "all_reduce", (0, 1)) == 2 * 4 * parameters
    if model == "resnet50":  # parameters and running statistics at the start, the statistics again before each step
        assert communicated(run, "broadcast", (0, 1))[4 * (parameters + RESNET50_BUFFERS)] == 1
        assert communicated(run, "broadcast", (0, 1))[4 * RESNET50_BUFFERS] == 2
    assert kernels(run)["aten::convolution"] == 2 * (RESNET50_NORMS if model == "resnet50" else 1)


def test_sync_batch_norm(tmp_path: Path) -> None:
    """Each batch norm of C channels gathers mean, inverse deviation (C each) and the count of every rank, and all-
    reduces two sums of C backward, in float32 (torch/nn/modules/_functions.py). ResNet-50's channels: He et al., 2016,
    table 1.
    """
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    run = record(tmp_path / "out", 2, write(tmp_path, CLASSIFY), "torchvision", "resnet50", "syncbn")
    channels = {64: 7, 128: 8, 256: 4 + 12, 512: 5 + 6, 1024: 7, 2048: 4}
    assert sum(channels.values()) == RESNET50_NORMS
    gathered, reduced = communicated(run, "all_gather", (0, 1)), communicated(run, "all_reduce", (0, 1))
    assert {size: gathered[size] for size in (2 * (2 * c + 1) * 4 for c in channels)} == {
        2 * (2 * c + 1) * 4: 2 * n for c, n in channels.items()
    }
    assert {c: reduced[2 * c * 4] for c in channels} == {c: 2 * n for c, n in channels.items()}
    assert volume(run, "all_reduce", (0, 1)) == 2 * 4 * (RESNET50 + sum(2 * c * n for c, n in channels.items()))


def test_unet_of_stable_diffusion(tmp_path: Path) -> None:
    """860 M parameters and 339 G multiply-adds for one 64 x 64 latent, those of scores and weighted sums of attention
    not counted (Kim et al., 2023, BK-SDM, table 1); every convolution has its gradient.
    """
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("diffusers is not installed")
    run = record(tmp_path / "out", 1, write(tmp_path, UNET))
    trace = run.ranks[0]
    assert kernels(run)["aten::convolution"] == kernels(run)["aten::convolution_backward"] > 0
    begin, end = trace.mark_ns[0], trace.mark_ns[1]
    rows = [run.signatures[s] for s, start in zip(trace.signature, trace.start_ns) if s >= 0 and begin <= start <= end]
    assert sum(row.flops for row in rows if row.family in ("gemm", "convolution")) / (2 * 339e9) == pytest.approx(
        1, abs=0.03
    )
    assert run.collectives == []
    assert max(trace.allocated_bytes) > 4 * 4 * 859_520_964  # parameters, gradients, both moments in float32


def test_operators_of_torchvision(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    run = record(tmp_path / "out", 1, write(tmp_path, REGIONS))
    for name in ("roi_align", "_roi_align_backward", "deform_conv2d", "_deform_conv2d_backward", "nms"):
        assert kernels(run)[f"torchvision::{name}"] == 1
