"""Convolutions in groups, one line of JSON each: forward and both gradients, mean of five calls queued behind a sleep.

usage: python grouped_bench.py
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import torch
from queued import mean_us
from torch.profiler import ProfilerActivity, profile

KERNELS = ((1, 3), (3, 3), (7, 7), (1, 16), (1, 32), (1, 64), (1, 128))
PER_GROUP = (4, 8, 16, 24, 32, 48, 64, 128)
GROUPS = (4, 16)
_SLEEP_CYCLES = 3_000_000


def longest_kernel(work: Callable[[], object]) -> tuple[str, int]:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    kernels = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    longest = max(kernels, key=lambda e: e.time_range.elapsed_us())
    return longest.name[:70], len(kernels)


def measure(groups: int, width: int, kernel: tuple[int, int], dtype: str, last: bool) -> dict[str, object]:
    side = (1, 1024) if kernel[0] == 1 else (28, 28)
    made = {"device": "cuda", "dtype": getattr(torch, dtype)}
    padding = [k // 2 for k in kernel]
    layer = torch.nn.Conv2d(groups * width, groups * width, kernel, padding=padding, groups=groups, bias=False, **made)
    x = torch.randn(8, groups * width, *side, **made)
    if last:
        layer, x = layer.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        y = layer(x)
    grad = torch.randn_like(y)
    row: dict[str, object] = {"groups": groups, "per_group": width, "kernel": kernel, "side": side, "batch": 8, "dtype": dtype, "channels_last": last}

    def gradient(*mask: bool) -> Callable[[], object]:
        return lambda: torch.ops.aten.convolution_backward(
            grad, x, layer.weight, None, [1, 1], padding, [1, 1], False, [0, 0], groups, mask
        )

    passes = {"forward": lambda: torch.no_grad()(layer)(x), "dgrad": gradient(True, False, False), "wgrad": gradient(False, True, False)}
    for name, work in passes.items():
        row[f"{name}_us"] = mean_us(work, _SLEEP_CYCLES)
        row[f"{name}_kernel"], row[f"{name}_kernels"] = longest_kernel(work)
    return row


def main() -> None:
    for groups, width, kernel, dtype, last in itertools.product(GROUPS, PER_GROUP, KERNELS, ("bfloat16", "float32"), (False, True)):
        if last and (kernel[0] == 1 or dtype == "float32"):
            continue
        print(json.dumps(measure(groups, width, kernel, dtype, last)), flush=True)


if __name__ == "__main__":
    main()
