"""The attention backend, and everything that scaled_dot_product_attention does, like torch 2.11 on an H200."""

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, measured, probe, raises
from torch.nn.attention import SDPBackend, sdpa_kernel

from phantora.intercept import attention, sdpa
from phantora.intercept.sdpa import Attention, Backend, Operand

MEASURED = measured()
BACKENDS = (
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH,
)  # fmt: skip

# Where 2.11, which was measured, differs from 2.13 and 2.14, its rules are set for these probes.
sdpa._CUDNN_DROPOUT_IN_SIXTEENTHS = False
sdpa._CUDNN_NARROW_HEADS = False
sdpa._EFFICIENT_TAKES_GQA = False
torch.backends.cudnn.version = lambda: MEASURED["cudnn"]


def call(dtype="bfloat16", heads=(8, 8), dims=(64, 64), lengths=(128, 128), mask=None, **rest):
    """An Attention of batch 2; mask: None, or (shape, dtype, requires_grad)."""
    kind = getattr(torch, dtype)
    grad = rest.pop("requires_grad", False)
    return Attention(
        query=Operand(shape=(2, heads[0], lengths[0], dims[0]), dtype=kind, requires_grad=grad),
        key=Operand(shape=(2, heads[1], lengths[1], dims[0]), dtype=kind),
        value=Operand(shape=(2, heads[1], lengths[1], dims[1]), dtype=kind),
        mask=None if mask is None else Operand(shape=mask[0], dtype=mask[1], requires_grad=mask[2]),
        enable_gqa=heads[0] != heads[1],
        **rest,
    )


@probe
def choices_of_an_h200():
    wrong = []
    for dtype, hq, hk, dq, dv, sq, sk, mask, dropout, is_causal, grad, expected in MEASURED["sdpa"]:
        kind = getattr(torch, dtype)
        masks = {
            None: None,
            "2d": ((sq, sk), kind, False),
            "4d": ((2, 1, sq, sk), kind, False),
            "bool": ((sq, sk), torch.bool, False),
            "grad": ((sq, sk), kind, True),
        }
        asked = call(
            dtype, (hq, hk), (dq, dv), (sq, sk), masks[mask], dropout=dropout, is_causal=is_causal, requires_grad=grad,
            cudnn_version=MEASURED["cudnn"],
        )  # fmt: skip
        if sdpa.choose(asked).name.lower() != expected:
            wrong.append((asked, expected))
    assert not wrong, (len(wrong), wrong[0])


@probe
def choices_of_other_gpus():
    for capability, expected in (
        ((7, 5), "MATH"),
        ((8, 0), "FLASH"),
        ((8, 9), "FLASH"),
        ((10, 0), "CUDNN"),
        ((12, 0), "FLASH"),
    ):
        with sdpa_kernel([b for b in BACKENDS if capability[0] in (9, 10) or b is not SDPBackend.CUDNN_ATTENTION]):
            assert sdpa.choose(call(capability=capability)).name == expected, capability
    assert sdpa.prefers_cudnn((9, 0), 92000)
    assert not sdpa.prefers_cudnn((9, 0), 91002)
    assert not sdpa.prefers_cudnn((8, 0), 92000)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        wide = {"dims": (200, 200), "requires_grad": True}
        assert sdpa.choose(call(capability=(8, 6), **wide)).name == "MATH"
        assert sdpa.choose(call(capability=(8, 0), **wide)).name == "FLASH"


@probe
def contexts_of_an_h200():
    q = torch.empty(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    packed = torch.empty(2, 64, 3, 4, 64, device="cuda", dtype=torch.bfloat16).permute(2, 0, 3, 1, 4).unbind(0)
    expected = dict(map(tuple, MEASURED["sdpa_extra"]))
    choose = torch._fused_sdp_choice
    answers = {
        "3d": choose(q[0], q[0], q[0]),
        "nonunit last stride": choose(*[q.transpose(-1, -2)] * 3),
        "packed": choose(*packed),
        "mixed dtype": choose(q, q.float(), q),
        "zero seq": choose(q[:, :, :0], q, q),
        "batch broadcast": choose(q, q[:1], q[:1]),
        "gqa flag off": choose(q, q[:, :2], q[:, :2]),
    }
    torch.use_deterministic_algorithms(True)
    answers["deterministic"] = choose(q, q, q)
    torch.use_deterministic_algorithms(False)
    for backend in BACKENDS:
        with sdpa_kernel(backend):
            answers[f"only {backend.name}"] = choose(q, q, q)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        answers["priority eff flash"] = choose(q, q, q)
    assert {k: Backend(v).name.lower() for k, v in answers.items()} == expected
    assert torch._C._get_sdp_priority_order() == [3, 1, 2, 0, 4]


def _forward_backward(backend, case):
    with sdpa_kernel(backend):
        case().sum().backward()


@probe
def operators_of_an_h200():
    """The same operators with the same results, forward and backward, for every backend."""
    query, key = (
        torch.randn(2, heads, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for heads in (8, 2)
    )
    mask = torch.ones(256, 256, device="cuda", dtype=torch.bool)
    cases = {
        "": lambda: F.scaled_dot_product_attention(query, query, query, is_causal=True, dropout_p=0.125),
        " gqa": lambda: F.scaled_dot_product_attention(query, key, key, enable_gqa=True),
        " mask": lambda: F.scaled_dot_product_attention(query, query, query, attn_mask=mask),
    }
    for backend in BACKENDS:
        for name, case in cases.items():
            kernel_probe.compare_operators(f"{backend.name}{name}", lambda: _forward_backward(backend, case))


@probe
def no_backend_left():
    q = torch.empty(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        raises(
            RuntimeError, "No available kernel", lambda: F.scaled_dot_product_attention(q.float(), q.float(), q.float())
        )
    raises(RuntimeError, "same dtype", lambda: F.scaled_dot_product_attention(q, q.float(), q))
    mask = torch.ones(64, 64, device="cuda", dtype=torch.bool)
    raises(RuntimeError, "is_causal=True", lambda: F.scaled_dot_product_attention(q, q, q, mask, is_causal=True))


@probe
def odd_head_dims_are_padded():
    q = torch.randn(2, 4, 64, 60, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        out = F.scaled_dot_product_attention(q, q, q)
        out.sum().backward()
    assert out.shape == q.shape == q.grad.shape


@probe
def masks_are_padded_before_they_are_expanded():
    """preprocess_mask: a bias of one window for 256 of them stays small (Swin: 49 positions, padded to 64)."""
    query = torch.randn(256, 16, 49, 32, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    bias = torch.randn(1, 16, 49, 49, dtype=torch.bfloat16, device="cuda")
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(query, query, query, bias)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        kept = torch.nn.functional.scaled_dot_product_attention(query, query, query, bias)
    outputs = kept.nbytes + 256 * 16 * 64 * 4  # and the sums of exponentials, rows padded to 32
    assert torch.cuda.max_memory_allocated() - before < outputs + 2 * 16 * 49 * 64 * 2


@probe
def autocast_reaches_the_fused_kernels():
    q = torch.randn(2, 4, 64, 64, device="cuda", requires_grad=True)
    kernel_probe.names()
    with torch.autocast("cuda", torch.bfloat16):
        F.scaled_dot_product_attention(q, q, q)
    assert "_scaled_dot_product_cudnn_attention" in kernel_probe.names()


@probe
def torch_backends_cuda_answers():
    q = torch.empty(2, 4, 64, 64, device="cuda", dtype=torch.bfloat16)
    params = torch.backends.cuda.SDPAParams(q, q, q, None, 0.0, False, False)
    assert torch.backends.cuda.can_use_flash_attention(params)
    assert torch.backends.cuda.can_use_efficient_attention(params)
    assert torch.backends.cuda.can_use_cudnn_attention(params)
    assert torch.backends.cuda.is_flash_attention_available()
    assert attention.describe(q, q, q, None, 0.0, False, False).capability == (9, 0)


finish()
