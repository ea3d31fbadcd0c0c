"""The roofs of a GPU: what a kernel cannot beat, and the floors that no kernel goes below.

Everything that is extrapolated to another GPU goes through this class, so a model written with it scales by itself:
matrix work by the peak of its dtype, traffic by memory bandwidth, instruction-bound work by the number of SMs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class GpuFigures(Protocol):
    """The fields of `phantora.cluster.spec.GpuSpec` that prices depend on."""

    num_sms: int
    memory_bytes_per_s: float
    l2_bytes: int
    peak_flops: Mapping[str, float]
    compute_capability: tuple[int, int] | str


# Bytes per element of every torch dtype that reaches a kernel.
# fmt: off
ITEM_BYTES: dict[str, int] = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16,
}
# fmt: on

# Time of an empty kernel when kernels follow each other on a stream: its run (~0.9 us) and the gap to the next one.
# Measured: x.add_(1) on one element takes 1.67 us per launch, 0.9-1.2 us of it between the profiler's time stamps.
LAUNCH_FLOOR_NS = 1650
KERNEL_GAP_NS = 700

# The same gap in a training step, where different kernels follow each other: 1.06 and 1.12 us in queued steps of GPT-2,
# 0.78 to 0.84 us in loops of the same kernels (validation/data/h200/gaps.json).
STEP_GAP_NS = 1060

# Share of the nominal memory bandwidth that a streaming kernel reaches: 4.39 of 4.8 TB/s for a large add on an H200, 3.1 of
# 3.35 on an H100, but 1.72 to 1.75 of 2.04 on an A100 (Vidur's additions of 2,048 to 4,096 tokens).
STREAM_EFFICIENCY = 0.915
_STREAM_EFFICIENCY_OF = {(8, 0): 0.855}

# SMs of the GPU on which instruction rates (elements/s of a kernel bound by its address arithmetic) were observed.
_RATED_SMS = 132


class Roof:
    """Rates of one GPU in units per nanosecond; built once per Pricer."""

    __slots__ = ("num_sms", "bytes_per_ns", "l2_bytes", "capability", "generation", "_flops_per_ns", "_sm_share")

    def __init__(self, gpu: GpuFigures) -> None:
        self.num_sms = int(gpu.num_sms)
        self.capability = capability(gpu.compute_capability)
        efficiency = _STREAM_EFFICIENCY_OF.get(self.capability, STREAM_EFFICIENCY)
        self.bytes_per_ns = float(gpu.memory_bytes_per_s) * efficiency / 1e9
        self.l2_bytes = int(gpu.l2_bytes)
        self.generation = self.capability[0]
        self._flops_per_ns = {dtype: float(flops) / 1e9 for dtype, flops in gpu.peak_flops.items() if flops}
        self._sm_share = self.num_sms / _RATED_SMS

    def flops_per_ns(self, dtype: str) -> float:
        """Peak matrix (float32, float64: vector) rate of `dtype`; a kind that the GPU lacks uses the next wider one."""
        for name in _WIDER.get(dtype, (dtype, "float32")):
            if name in self._flops_per_ns:
                return self._flops_per_ns[name]
        return self._flops_per_ns["float32"]

    def stream_ns(self, num_bytes: float) -> float:
        """Time to move `num_bytes` through device memory at the streaming rate."""
        return num_bytes / self.bytes_per_ns

    def items_ns(self, num_items: float, items_per_s: float) -> float:
        """Time of `num_items` at a rate observed on 132 SMs, scaled to this GPU's SMs."""
        return num_items * 1e9 / (items_per_s * self._sm_share)


def capability(compute_capability: tuple[int, int] | str) -> tuple[int, ...]:
    """(major, minor); major: 8 Ampere and Ada, 9 Hopper, 10 and 12 Blackwell."""
    parts = compute_capability.split(".") if isinstance(compute_capability, str) else compute_capability
    return tuple(map(int, parts))


_WIDER: dict[str, tuple[str, ...]] = {
    "float8": ("float8", "float16"),
    "int8": ("int8", "float8", "float16"),
    "bfloat16": ("bfloat16", "float16", "float32"),
    "tf32": ("tf32", "float32"),
    "float64": ("float64", "float32"),
}
