"""torchvision, timm and diffusers: models of their own, trained by plain PyTorch; gradients against the number of parameters."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from recording import communicated, record, volume

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
unet = UNet2DConditionModel(sample_size=16, block_out_channels=(64, 128, 128, 128), layers_per_block=1, cross_attention_dim=128,
                            attention_head_dim=8, norm_num_groups=32).cuda()
noise, optimizer = DDPMScheduler(num_train_timesteps=1000), torch.optim.AdamW(unet.parameters(), 1e-4)
for _ in range(2):
    x = torch.randn(2, 4, 16, 16, device="cuda"); e = torch.randn_like(x); t = torch.randint(0, 1000, (2,), device="cuda").long()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = unet(noise.add_noise(x, e, t), t, encoder_hidden_states=torch.randn(2, 77, 128, device="cuda")).sample
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
    """4 bytes per parameter and step (Li et al., 2020, PyTorch Distributed, section 3.2), whatever autocast computes in."""
    pytest.importorskip("torch")
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    run = record(tmp_path / "out", 2, write(tmp_path, CLASSIFY), library, model)
    assert volume(run, "all_reduce", (0, 1)) == 2 * 4 * parameters
    if model == "resnet50":  # parameters and running statistics at the start, the statistics again before each step
        assert communicated(run, "broadcast", (0, 1))[4 * (parameters + RESNET50_BUFFERS)] == 1
        assert communicated(run, "broadcast", (0, 1))[4 * RESNET50_BUFFERS] == 2
    convolutions = sum(1 for s in run.ranks[0].signature if s >= 0 and run.signatures[s].name == "aten::convolution")
    assert convolutions == 2 * (RESNET50_NORMS if model == "resnet50" else 1)


def test_unet(tmp_path: Path) -> None:
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("diffusers is not installed")
    run = record(tmp_path / "out", 1, write(tmp_path, UNET))
    names = [run.signatures[s].name for s in run.ranks[0].signature if s >= 0]
    assert names.count("aten::convolution") == names.count("aten::convolution_backward") > 0
    assert run.collectives == []


def test_operators_of_torchvision(tmp_path: Path) -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    run = record(tmp_path / "out", 1, write(tmp_path, REGIONS))
    names = [run.signatures[s].name for s in run.ranks[0].signature if s >= 0]
    for name in ("roi_align", "_roi_align_backward", "deform_conv2d", "_deform_conv2d_backward", "nms"):
        assert names.count(f"torchvision::{name}") == 1
