"""Several devices in one process, copies between them and the host, and torch's errors when they are mixed."""

import copy
import io
import sys

import kernel_probe

kernel_probe.arm(num_devices=4)

import torch
import torch.nn.functional as F
from kernel_probe import finish, launches, names, probe, raises
from torch import nn

NATIVE = sys.modules["phantora_native"]


@probe
def results_stay_on_the_device():
    a = torch.randn(4, 4, device="cuda:1")
    for _ in range(2):  # first, then planned
        assert (a @ a).device.index == 1
    launches()
    b = a @ a
    assert [device for _, device, _ in launches()] == [1]
    c = b.to("cuda:2")
    assert c.device.index == 2
    assert [(call.name, device) for call, device, _ in launches()] == [("memcpy_p2p", 1)]
    assert torch.arange(3, device="cuda:3").to("cuda:0").tolist() == [0, 1, 2]


@probe
def current_device():
    with torch.cuda.device(3):
        assert torch.empty(1, device="cuda").device.index == 3
        assert torch.randn(2, 2, device="cuda").mm(torch.randn(2, 2, device="cuda")).device.index == 3


@probe
def mixed_devices_raise_as_on_a_gpu():
    a, b, cpu = torch.randn(4, 4, device="cuda:1"), torch.randn(4, 4, device="cuda:2"), torch.ones(4, 4)
    for _ in range(2):
        raises(RuntimeError, "found at least two devices, cuda:1 and cuda:2!", lambda: a + b)
        raises(RuntimeError, "found at least two devices, cuda:1 and cpu!", lambda: a + cpu)
        raises(RuntimeError, "found at least two devices, cuda:1 and cpu!", lambda: cpu + a)
        expected = "got mat2 is on cpu, different from other tensors on cuda:1 (when checking argument in method "
        raises(RuntimeError, expected + "wrapper_CUDA_mm)", lambda: a @ cpu)
        raises(RuntimeError, "wrapper_CUDA_addmm", lambda: F.linear(a, b, b[0]))
        raises(RuntimeError, "wrapper_CUDA__index_select", lambda: a.index_select(0, torch.tensor([0])))


@probe
def cpu_numbers_may_mix_in():
    a = torch.randn(4, 4, device="cuda")
    assert (a + torch.tensor(2.0)).is_cuda
    assert (torch.tensor(2.0) * a).is_cuda
    assert torch.where(a > 0, a, torch.tensor(0.0)).is_cuda
    assert a[torch.tensor([0, 1])].shape == (2, 4)
    assert (a.int() * torch.tensor(2.5)).dtype == torch.float32
    assert (a.bfloat16() * torch.tensor(2.5)).dtype == torch.bfloat16


@probe
def mistakes_of_the_script_read_as_usual():
    a = torch.randn(4, 4, device="cuda")
    raises(
        RuntimeError,
        "mat1 and mat2 shapes cannot be multiplied (4x4 and 3x4)",
        lambda: a @ torch.ones(3, 4, device="cuda"),
    )
    raises(
        RuntimeError,
        "must match the size of tensor b (3) at non-singleton dimension 1",
        lambda: a + torch.ones(3, device="cuda"),
    )
    raises(IndexError, "index 5 is out of bounds", lambda: a[5])
    raises(TypeError, "can't convert cuda:0 device type tensor to numpy", a.numpy)


@probe
def host_copies():
    """What is a memcpy, what is pinned, and when the host waits."""
    a = torch.randn(64, 64, device="cuda")
    pageable, pinned = torch.empty(64, 64), torch.empty(64, 64).pin_memory()
    for host, non_blocking, waits in (
        (pageable, False, True),
        (pinned, False, True),
        (pinned, True, False),
        (pageable, True, True),
    ):
        for copy_ in (
            lambda: a.copy_(host, non_blocking=non_blocking),
            lambda: host.copy_(a, non_blocking=non_blocking),
        ):
            torch.cuda.synchronize()
            launches()
            copy_()
            ((call, _, stream),) = launches()
            assert call.name in ("memcpy_h2d", "memcpy_d2h")
            assert call.arg("pinned") is host.is_pinned()
            assert call.arg("non_blocking") is non_blocking
            assert call.mutated == ("self",)
            end_ns, _ = NATIVE.stream_state(0, stream)
            assert (NATIVE.now_ns() >= end_ns) is waits


@probe
def converting_copies_use_temporaries_like_torch():
    a = torch.randn(64, 64, device="cuda")
    launches()
    a.to("cpu", torch.bfloat16)  # .to converts and copies
    a.t().cpu()
    a.t().copy_(torch.ones(64, 64))
    assert names() == ["copy_", "memcpy_d2h", "copy_", "memcpy_d2h", "memcpy_h2d", "copy_"], names()


@probe
def device_copies():
    a, b = torch.randn(64, 64, device="cuda"), torch.empty(64, 64, device="cuda")
    launches()
    b.copy_(a)
    b.copy_(a.t())
    b.copy_(a.half())
    a.clone()
    assert names() == ["memcpy_d2d", "copy_", "copy_", "copy_", "memcpy_d2d"]


@probe
def data_parallel():
    model = nn.DataParallel(nn.Linear(8, 8).cuda(), [0, 1])
    launches()
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    assert model.module.weight.grad.device.index == 0
    assert {device for _, device, _ in launches()} == {0, 1}


@probe
def saving_loading_copying():
    layer = nn.Linear(64, 64).cuda()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file, map_location="cuda:1"))
    file.seek(0)
    assert torch.load(file)["weight"].device == torch.device("cuda:0")
    twin = copy.deepcopy(layer)
    assert twin.weight.data_ptr() != layer.weight.data_ptr()
    file = io.BytesIO()
    torch.save(torch.arange(5, device="cuda"), file)
    file.seek(0)
    assert torch.load(file).tolist() == [0, 1, 2, 3, 4]


@probe
def no_work_no_launch():
    a = torch.empty(4, 4, device="cuda")
    launches()
    a.view(16), a.t(), a[1:], a.expand(2, 4, 4), a.detach(), a.unsqueeze(0), torch.empty_like(a), a.new_empty(3)
    torch.empty(0, device="cuda") + 1
    torch.cat([torch.empty(0, device="cuda")] * 2)
    torch._neg_view(a)
    assert names() == []


finish()
