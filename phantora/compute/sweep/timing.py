"""Device time of one case, and the kernels it launches.

Launches are queued behind a sleeping kernel, so that the host's launch cost is hidden, and rotate over sets of inputs
that together exceed the L2 cache; two events around them give the mean device time per launch. At most 10 ms are timed
(or 5 launches), so the power limit does not yet lower the clock.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from phantora.compute.sweep.case import Case
from phantora.compute.sweep.observe import Observer

_CYCLES_PER_US = 2000  # _sleep counts SM clocks, at most 1.98 GHz on an H200
_ROTATED_BYTES = 2 * (60 << 20)


def input_bytes(values: Any) -> int:
    """Bytes of all tensors in (nested) inputs."""
    if isinstance(values, torch.Tensor):
        return values.numel() * values.element_size()
    return sum(map(input_bytes, values)) if isinstance(values, (list, tuple)) else 0


def observed(case: Case) -> tuple[tuple[Any, ...], Observer]:
    """A first set of inputs and the operator calls of one run on it (which is also the first warm-up)."""
    first = case.make()
    with Observer() as observer:
        case.run(*first)
    return first, observer


def device_us(case: Case, first: tuple[Any, ...]) -> tuple[float, float]:
    """(device us, host us) per launch."""
    size = max(1, input_bytes(first))
    sets = [first] + [case.make() for _ in range(min(case.max_sets, math.ceil(_ROTATED_BYTES / size)) - 1)]
    host_us, estimate_us = _warm_up(case, sets)
    repetitions = int(max(5, min(40, 10_000 / estimate_us)))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(int(_CYCLES_PER_US * min(1.4 * host_us * repetitions + 200, 200_000)))
    start.record()
    begun = time.perf_counter()
    for i in range(repetitions):
        case.run(*sets[i % len(sets)])
    host_us = (time.perf_counter() - begun) * 1e6 / repetitions
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) * 1e3 / repetitions, host_us


def wall_us(case: Case, inputs: tuple[Any, ...]) -> float:
    """Time from the launch of one run to the end of its kernels, on the host's clock."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    case.run(*inputs)
    torch.cuda.synchronize()
    return (time.perf_counter() - begun) * 1e6


def _warm_up(case: Case, sets: list[tuple[Any, ...]]) -> tuple[float, float]:
    """(host us of a launch, rough device us)."""
    case.run(*sets[-1])
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    begun = time.perf_counter()
    case.run(*sets[0])
    host_us = (time.perf_counter() - begun) * 1e6
    end.record()
    torch.cuda.synchronize()
    return host_us, max(2.0, start.elapsed_time(end) * 1e3)


def kernels(cases: list[Case]) -> list[list[tuple[str, float]]]:
    """(name, us) of each kernel, copy and fill that one run of each case launches; sleeping kernels part the cases."""
    prepared = [case.make() for case in cases]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for case, inputs in zip(cases, prepared):
            torch.cuda._sleep(2000)
            case.run(*inputs)
        torch.cuda.synchronize()
    found: list[list[tuple[str, float]]] = []
    events = [e for e in profile.profiler.kineto_results.events() if e.device_type() == torch.autograd.DeviceType.CUDA]
    for event in sorted(events, key=lambda e: e.start_ns()):
        if "spin_kernel" in event.name():
            found.append([])
        elif found:
            found[-1].append((short_name(event.name()), event.duration_ns() / 1e3))
    return found if len(found) == len(cases) else [[] for _ in cases]


def short_name(name: str) -> str:
    """A kernel's name without its namespaces and argument lists, at most 80 characters."""
    plain = name.removeprefix("void ").replace("at::native::", "").replace("(anonymous namespace)::", "")
    return plain.split("(")[0][:80]
