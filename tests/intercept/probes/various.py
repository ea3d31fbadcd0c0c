"""Linear algebra, transforms, distributions, functional transforms, low precision: that they run, and where they
wait."""

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import finish, names, probe


def x(*shape, dtype=torch.float32):
    return torch.randn(*(shape or (3,)), device="cuda", dtype=dtype)


@probe
def functional_transforms():
    assert torch.func.vmap(torch.func.grad(lambda a: (a * a).sum()))(x(4, 3)).shape == (4, 3)
    assert torch.func.jacrev(torch.sin)(x()).shape == (3, 3)
    assert torch.func.jvp(torch.sin, (x(),), (x(),))[1].shape == (3,)
    assert torch.func.vmap(F.linear)(x(4, 3, 2), x(4, 5, 2)).shape == (4, 3, 5)
    assert torch.func.hessian(lambda a: (a**3).sum())(x()).shape == (3, 3)


@probe
def double_backward():
    a = x(300).requires_grad_()
    (grad,) = torch.autograd.grad((a * a * a).sum(), a, create_graph=True)
    grad.sum().backward()
    assert a.grad.shape == a.shape


@probe
def low_precision():
    a, b = (x(*s).to(torch.float8_e4m3fn) for s in ((32, 64), (48, 64)))
    one = torch.ones((), device="cuda")
    assert torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16).shape == (32, 48)
    offsets = torch.tensor([16, 32, 48, 64], device="cuda", dtype=torch.int32)
    half = torch.bfloat16
    assert torch._grouped_mm(x(64, 32, dtype=half), x(4, 32, 16, dtype=half), offs=offsets).shape == (64, 16)


@probe
def linear_algebra():
    (
        torch.linalg.svd(x(8, 8)),
        torch.linalg.eig(x(3, 3)),
        torch.linalg.slogdet(x(3, 3)),
        torch.linalg.lstsq(x(4, 3), x(4, 2)),
    )
    torch.cdist(x(3, 2), x(3, 2)), torch.cov(x(3, 4)), torch.quantile(x(9), 0.5), torch.trapezoid(x())
    torch.stft(x(400), 64, return_complex=True, window=torch.hann_window(64, device="cuda"))
    torch.cummax(x(), 0), torch.logcumsumexp(x(), 0), torch.mode(x()), torch.nanmedian(x())


@probe
def distributions():
    ones = torch.ones(3, device="cuda")
    d = torch.distributions
    d.Normal(ones, ones).rsample(), d.Gamma(ones, ones).rsample(), d.Dirichlet(ones).rsample()
    d.Categorical(logits=x(3, 4)).sample()


@probe
def quantization():
    assert torch.fake_quantize_per_tensor_affine(x(), 0.1, 0, 0, 255).shape == (3,)


@probe
def nested_tensors():
    nested = torch.nested.nested_tensor([x(3, 4), x(2, 4)], layout=torch.jagged)
    assert (nested * 2).shape[0] == 2
    assert F.linear(nested, x(5, 4)).shape[-1] == 5


@probe
def waits():
    """`nonzero` makes the host wait, `where` with three arguments does not."""
    import sys

    native = sys.modules["phantora_native"]
    a = x(4096, 64)
    torch.cuda.synchronize()
    torch.where(a > 0, a, 0.0)
    assert native.now_ns() < native.stream_state(0, 0)[0] + 1_000_000
    names()
    (a > 0).nonzero()
    assert native.now_ns() >= native.stream_state(0, 0)[0]


@probe
def inference_mode_and_threads():
    import threading

    with torch.inference_mode():
        assert torch.arange(4, device="cuda").sum().item() == 6
        y = torch.zeros(3, device="cuda")
    results = []
    thread = threading.Thread(target=lambda: results.append((torch.ones(2, device="cuda") + 1).sum().item()))
    thread.start()
    thread.join()
    assert results == [4.0]
    assert (y + 1).tolist() == [1, 1, 1]


@probe
def default_devices():
    with torch.device("cuda"):
        model = torch.nn.Linear(4, 4)
        assert model(torch.ones(2, 4)).shape == (2, 4)
        assert torch.arange(3).tolist() == [0, 1, 2]
        (torch.randn(5, 5) > 0).nonzero(), torch.randn(9).topk(3), torch.randperm(4).tolist()
    torch.set_default_device("cuda")
    assert torch.bincount(torch.tensor([1, 1])).tolist() == [0, 2]
    torch.set_default_device("cpu")


finish()
