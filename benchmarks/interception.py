"""What intercepting an operator costs this machine: thread CPU microseconds per call, beside a real CPU addition.

    python benchmarks/interception.py

Target: at most 2 us for a planned operator (one whose signature was seen before). Prices are constant here, so that
only interception is measured. Numbers are the best of several rounds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from phantora.compute.call import OpCall, Price
from phantora.intercept import boot, session

TARGET_US = 2.0
NUM_ROUNDS = 3
GPU = {
    "name": "benchmark",
    "major": 9,
    "minor": 0,
    "total_memory": 80 << 30,
    "multi_processor_count": 132,
    "L2_cache_size": 50 << 20,
    "clock_rate": 1_980_000,
    "memory_clock_rate": 2_619_000,
    "memory_bus_width": 5120,
}


class ConstantPricer:
    def price(self, call: OpCall) -> Price:
        return Price(duration_ns=1000, num_kernels=1, source="roofline", flops=0, bytes=0, family="constant")

    def host_ns(self, call: OpCall) -> tuple[int, int]:
        return 5000, 3000


def main() -> None:
    session.set_pricer(ConstantPricer())
    boot.arm(boot.BootConfig(device_properties=GPU, parts=("patches", "kernels")))
    import torch

    torch.set_num_threads(1)
    native = sys.modules["phantora_native"]
    rows: list[tuple[str, float, bool]] = []

    def measure(name: str, function: Callable[[], Any], count: int = 20_000, planned: bool = False) -> None:
        rows.append((name, microseconds(function, count, native), planned))

    with torch.no_grad():
        _operators(torch, measure)
    _autograd(torch, measure)
    _streams(torch, measure)
    _native(torch, native, measure)
    _optimizer(torch, measure)
    report(rows)


def microseconds(function: Callable[[], Any], count: int, native: Any) -> float:
    """Thread CPU time of one call, best of NUM_ROUNDS."""
    for _ in range(100):
        function()
    best = float("inf")
    for _ in range(NUM_ROUNDS):
        begin_ns = time.thread_time_ns()
        for _ in range(count):
            function()
        best = min(best, (time.thread_time_ns() - begin_ns) / count / 1e3)
        native.drain()
    return best


def _operators(torch: Any, measure: Callable[..., None]) -> None:
    a, b = torch.randn(1024, 1024, device="cuda"), torch.randn(1024, 1024, device="cuda")
    on_cpu, known = torch.ones(4), torch.ones((), device="cuda")
    measure("real CPU add of 4 elements", lambda: on_cpu + on_cpu)
    measure("add", lambda: a + b, planned=True)
    measure("mm", lambda: torch.mm(a, b), planned=True)
    measure("add_", lambda: a.add_(b), planned=True)
    measure("relu", lambda: torch.relu(a), planned=True)
    measure("a * 2.0", lambda: a * 2.0, planned=True)
    measure("sum over a dimension", lambda: a.sum(0), planned=True)
    measure("sum to an unknown scalar", lambda: a.sum(), planned=True)
    measure("cat of 4", lambda: torch.cat([a, a, b, b]), planned=True)
    measure("native_layer_norm", lambda: torch.native_layer_norm(a, (1024,), None, None, 1e-5), planned=True)
    measure("copy_ on the device", lambda: a.copy_(b), planned=True)
    measure("to(bfloat16)", lambda: a.to(torch.bfloat16))
    measure("dropout", lambda: torch.nn.functional.dropout(a, 0.1))
    measure("view", lambda: a.view(-1))
    measure("transpose", lambda: a.t())
    measure("slice", lambda: a[3:5])
    measure("empty", lambda: torch.empty(1024, 1024, device="cuda"))
    measure("zeros", lambda: torch.zeros(1024, 1024, device="cuda"))
    measure("add of known scalars (computed)", lambda: known + known, 3000)
    measure("item() of a known scalar", lambda: known.item(), 3000)


def _autograd(torch: Any, measure: Callable[..., None]) -> None:
    x = torch.randn(8, 128, 1024, device="cuda", requires_grad=True)
    w = torch.randn(1024, 1024, device="cuda", requires_grad=True)

    def step() -> None:
        (x @ w).sum().backward()
        x.grad = w.grad = None

    measure("F.linear with grad", lambda: torch.nn.functional.linear(x, w))
    measure("matmul + sum + backward", step, 2000)


def _streams(torch: Any, measure: Callable[..., None]) -> None:
    stream, event = torch.cuda.Stream(), torch.cuda.Event()
    plain, current = torch.Event("cuda"), torch.accelerator.current_stream()

    def enter() -> None:
        with torch.cuda.stream(stream):
            pass

    def record_and_wait() -> None:
        event.record()
        stream.wait_event(event)

    def record_and_wait_natively() -> None:
        plain.record(current)
        plain.wait(current)

    measure("torch.cuda.current_stream()", torch.cuda.current_stream)
    measure("with torch.cuda.stream", enter)
    measure("Event.record + Stream.wait_event", record_and_wait)
    measure("torch.Event record + wait", record_and_wait_natively)
    measure("torch.cuda.synchronize()", torch.cuda.synchronize)


def _native(torch: Any, native: Any, measure: Callable[..., None]) -> None:
    spec = native.Spec(torch.empty(1024, 1024, device="meta"))
    signature = native.define_signature(1000, 0, 0)
    storage = torch.empty(1 << 20, device="cuda").untyped_storage()

    def shrink_and_grow() -> None:
        storage.resize_(0)
        storage.resize_(1 << 22)

    measure("native.launch", lambda: native.launch(signature, 0))
    measure("Spec.make (a tensor's birth and death)", lambda: spec.make(0))
    measure("storage.resize_(0) + resize_(n)", shrink_and_grow, 5000)
    measure("make_work", lambda: native.make_work(0, 0, [], False), 5000)


def _optimizer(torch: Any, measure: Callable[..., None]) -> None:
    parameters = [torch.nn.Parameter(torch.randn(256, 256, device="cuda")) for _ in range(150)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    for kind in ("fused", "foreach"):
        optimizer = torch.optim.AdamW(parameters, **{kind: True})
        measure(f"AdamW step of 150 parameters, {kind}", optimizer.step, 20)


def report(rows: list[tuple[str, float, bool]]) -> None:
    for name, cost_us, planned in rows:
        note = ("  ok" if cost_us <= TARGET_US else f"  above {TARGET_US} us") if planned else ""
        print(f"{name:42s} {cost_us:9.2f} us{note}")
    hits, misses = sys.modules["phantora_native"].plan_stats()
    print(f"{hits} planned calls, {misses} first calls")


if __name__ == "__main__":
    main()
