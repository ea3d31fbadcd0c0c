"""What CUDA accepts although a stricter reading would not: mixed dtypes, numbers, promotion, zero-size inputs."""

import math

import kernel_probe

kernel_probe.arm(num_devices=1)

import torch
import torch.nn.functional as F
from kernel_probe import finish, probe, stand_ins
from torch import nn

bf16, half, double, long, int32 = torch.bfloat16, torch.half, torch.double, torch.long, torch.int32


def t(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype, device="cuda")


@probe
def promotion():
    assert (t(3, dtype=bf16) + t(3)).dtype == torch.float32
    assert (t(3, dtype=long) + 1.5).dtype == torch.float32
    assert (t(3, dtype=bf16) * torch.tensor(2.5, dtype=double)).dtype == bf16
    assert t(3, dtype=bf16).add_(t(3)).dtype == bf16
    assert t(3, dtype=half).mul_(torch.tensor(2.5, dtype=double)).dtype == half
    assert t(3).add_(t(3, dtype=long)).dtype == torch.float32
    assert (t(3, dtype=torch.bool).logical_and_(t(3))).dtype == torch.bool
    assert t(3).eq_(t(3)).dtype == torch.float32
    assert t(5, 3).add_(t(3)).shape == (5, 3)
    assert t(3, dtype=long).div_(2, rounding_mode="floor").dtype == long
    assert t(3, dtype=bf16).addcmul_(t(3), t(3)).dtype == bf16
    assert t(3, dtype=half).pow_(2.0).dtype == half
    assert t(3, dtype=torch.bool).cumsum(0).dtype == long
    assert t(3, dtype=torch.bool).clamp(0, 1).dtype == long
    assert (2.0 ** t(3, dtype=long)).dtype == torch.float32


@probe
def lists():
    torch._foreach_add_([t(3, dtype=bf16), t(2)], [t(3), t(2)])
    torch._foreach_mul_([t(3), t(2)], torch.tensor(2.0, device="cuda"))
    torch._foreach_copy_([t(3, dtype=bf16)], [t(3)])
    torch._foreach_lerp_([t(3), t(2)], [t(3), t(2)], 0.5)
    torch._foreach_div_([t(3)], [t(1)])
    torch._foreach_sub_([t(3)], 1.0)


@probe
def mixed_modules():
    norm = nn.BatchNorm2d(4).cuda()
    assert norm(t(2, 4, 3, 3, dtype=half)).dtype == half
    assert norm.half()(t(2, 4, 3, 3, dtype=half)).dtype == half
    assert nn.BatchNorm2d(4, affine=False).cuda()(t(2, 4, 3, 3)).dtype == torch.float32
    assert F.rms_norm(t(2, 4, dtype=bf16), (4,), t(4)).dtype in (bf16, torch.float32)
    with torch.autocast("cuda", dtype=bf16):
        assert nn.Linear(8, 8).cuda()(t(4, 8)).dtype == bf16
        assert nn.Conv2d(1, 1, 3).cuda()(t(1, 1, 4, 4)).dtype == bf16
        assert nn.LayerNorm(8).cuda()(t(4, 8, dtype=bf16)).dtype == torch.float32
        assert F.cross_entropy(t(4, 4, dtype=bf16), t(4, dtype=long)).dtype == torch.float32
        assert F.binary_cross_entropy_with_logits(t(4), t(4)).dtype == torch.float32


@probe
def low_precision():
    a, b = t(32, 32, dtype=torch.int8), t(32, 32, dtype=torch.int8)
    assert torch._int_mm(a, b).dtype == int32
    quantized, one = t(32, 32).to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    assert torch._scaled_mm(quantized, quantized.t(), one, one, out_dtype=bf16).dtype == bf16
    assert torch.cat([quantized, quantized]).shape == (64, 32)
    assert quantized[t(2, dtype=long)].shape == (2, 32)
    assert quantized.to(bf16).dtype == bf16


@probe
def indexing():
    a = t(4, 4, dtype=half)
    a[a > 0] = torch.tensor(1.0)  # masked_fill_, which converts
    a[0] = 1.0
    a[t(2, dtype=long)] = 3
    a.masked_fill_(a > 0, float("-inf"))
    a.masked_fill_(a > 0, torch.tensor(1.0, dtype=double, device="cuda"))
    a.index_add_(0, t(2, dtype=int32), t(2, 4, dtype=half))
    a.scatter_(0, t(2, 4, dtype=long), 1.0)
    assert F.embedding(t(3, dtype=int32), t(4, 4)).shape == (3, 4)
    assert t(1).expand(3).clone().add_(1).shape == (3,)
    assert t(3, 1).expand(3, 1).add_(1).shape == (3, 1)


@probe
def without_elements():
    """What is computed from nothing is known, at a repeat too."""
    before = stand_ins()
    for _ in range(3):
        nothing = torch.empty(0, device="cuda")
        assert torch.empty(0, 5, device="cuda").sum(0).tolist() == [0.0] * 5
        assert (torch.empty(3, 0, device="cuda") @ torch.empty(0, 4, device="cuda")).tolist() == [[0.0] * 4] * 3
        assert math.isnan(nothing.mean().item())
        assert nothing.sum().item() == 0.0
        assert nothing.prod().item() == 1.0
        assert nothing.long().sum().item() == 0
        assert torch.empty(0, 2, device="cuda").all(0).tolist() == [True, True]
        assert math.isnan(F.mse_loss(nothing, nothing).item())
        assert torch.cat([nothing, t(2)]).tolist() == [1.0, 1.0]
    assert stand_ins() == before


@probe
def least_squares():
    solution, residuals, rank, singular = torch.linalg.lstsq(t(4, 2), t(4, 1))
    assert (solution.shape, residuals.shape, rank.shape, singular.shape) == ((2, 1), (1,), (0,), (0,))
    assert torch.linalg.lstsq(t(3, 2, 4), t(3, 2, 5)).solution.shape == (3, 4, 5)
    assert torch.linalg.lstsq(t(3, 4, 2), t(3, 4)).solution.shape == (3, 2)


@probe
def nested():
    components = [t(3, 4), t(2, 4)]
    padded = torch.nested.nested_tensor(components).to_padded_tensor(-1.0)
    assert padded.is_cuda and padded.shape == (2, 3, 4)
    assert padded[1, 2].tolist() == [-1.0] * 4
    assert torch.nested.nested_tensor(components, layout=torch.jagged).to_padded_tensor(0.0).shape == (2, 3, 4)


@probe
def large_optimizer_steps():
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)]).cuda()
    for fused in (None, True):
        optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
        model(t(2, 16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


finish()
