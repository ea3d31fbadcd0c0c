"""Units of host time beside calls of the device: what is counted, and that nothing else changes.

Each test is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from armed import PROPERTIES

pytestmark = pytest.mark.torch

# Every unit has a cost of its own, so that a total tells what was counted. Calls of the device cost nothing.
UNITS = {
    "view": (1, 10), "gradient": (100, 1_000), "module": (10_000, 10_000), "parameter": (100_000, 100_000),
    "subclass": (1_000_000, 1_000_000), "cpu_random": (10_000_000, 10_000_000), "placement": (0, 0),
}  # fmt: skip

PREAMBLE = f"""
import sys
from phantora.compute.call import Price
from phantora.intercept import boot, session

class Free:
    def price(self, call):
        return Price(duration_ns=0, num_kernels=1, source="roofline", flops=0, bytes=0, family="constant")
    def host_ns(self, call):
        return 0, 0

session.set_pricer(Free())
boot.arm(boot.BootConfig(device_properties={PROPERTIES!r}, parts=("patches", "kernels", "host_time"), unit_ns={UNITS!r}))
import torch
native = sys.modules["phantora_native"]

def ns(function, *arguments):
    function(*arguments)  # the first call of a signature goes through Python
    begin = native.now_ns()
    function(*arguments)
    return native.now_ns() - begin
"""


def printed(code: str) -> list[Any]:
    result = subprocess.run([sys.executable, "-c", PREAMBLE + code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return [eval(line) for line in result.stdout.splitlines()]


def test_views_are_counted_once_each() -> None:
    code = """
x = torch.empty(4, 6, device="cuda")
print((ns(lambda: x.view(24)), ns(lambda: x.t()), ns(lambda: x[0]), ns(lambda: x.unsqueeze(0)), ns(lambda: x.detach())))
c = torch.empty(4, 6)
print(ns(lambda: c.view(24)))
"""
    assert printed(code) == [(1, 1, 1, 1, 100), 0]


def test_autograd_pays_its_own_price() -> None:
    code = """
w = torch.nn.Parameter(torch.empty(4, device="cuda"))
def step():
    w.grad = None
    (w.view(2, 2) * 2).sum().backward()
print(ns(step))
"""
    (total,) = printed(code)
    assert total % 10 == 1  # the view of the forward pass
    assert total // 1_000 == 1  # the gradient that is kept


def test_calls_of_modules_are_counted_and_look_as_before() -> None:
    code = """
class Twice(torch.nn.Module):
    def forward(self, x, *, times=2):
        return x * times

inner = torch.nn.Sequential(Twice(), Twice())
x = torch.ones(3)
print(ns(inner, x))
print((float(inner(x)[0]), float(Twice()(x, times=5)[0])))
seen = []
inner[1].register_forward_pre_hook(lambda module, args: seen.append("pre"))
inner[1].register_forward_hook(lambda module, args, out: out + 1)
print((float(inner(x)[0]), seen))
import inspect
print((str(inspect.signature(torch.nn.Module.__call__)), len(torch.nn.modules.module._global_forward_pre_hooks)))
print(float(torch.compile(inner, backend="eager")(x)[0]))
print(float(torch.fx.symbolic_trace(torch.nn.Sequential(Twice(), Twice()))(x)[0]))
"""
    assert printed(code) == [30_000, (4.0, 5.0), (5.0, ["pre"]), ("(self, *args, **kwargs)", 0), 5.0, 4.0]


def test_parameters_of_an_optimizer_are_counted() -> None:
    code = """
parameters = [torch.nn.Parameter(torch.empty(8, device="cuda")) for _ in range(7)]
for p in parameters:
    p.grad = torch.empty(8, device="cuda")
print(ns(torch.optim.SGD(parameters, lr=0.1).step) // 100_000)
"""
    assert printed(code) == [7]


def test_operators_inside_torch_dispatch_cost_more() -> None:
    code = """
from torch.utils._python_dispatch import TorchDispatchMode
class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
x = torch.empty(1 << 20, device="cuda")
plain = ns(lambda: x + x)
with Watch():
    print((plain, ns(lambda: x + x), ns(lambda: x.view(-1))))
"""
    assert printed(code) == [(0, 1_000_000, 1_000_001)]


def test_random_numbers_of_the_cpu_are_charged_by_the_thousand() -> None:
    code = """
x = torch.empty(4096)
print((ns(x.normal_), ns(torch.rand, 2048), ns(torch.randint, 0, 9, (1024,)), ns(torch.rand, 1023)))
torch.manual_seed(3); a = torch.randn(5000)
torch.manual_seed(3); print((bool((a == torch.randn(5000)).all()), float(a.std()) > 0.9))
print(ns(lambda: torch.empty(4096, device="cuda").normal_()))
"""
    assert printed(code) == [(40_000_000, 20_000_000, 10_000_000, 0), (True, True), 0]


def test_nothing_is_charged_while_recording_is_off() -> None:
    code = """
native.set_recording(False)
print(ns(lambda: torch.empty(4, device="cuda").view(2, 2)))
"""
    assert printed(code) == [0]


def test_torch_compile_sees_no_trace_of_the_counting() -> None:
    code = """
import torch._dynamo
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
print(torch._dynamo.explain(model)(torch.ones(3)).graph_break_count)
print(tuple(torch.compile(model, backend="eager")(torch.ones(3)).shape))
"""
    assert printed(code) == [0, (3,)]
