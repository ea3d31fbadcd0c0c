"""Pooling, interpolation and sampling of images, and fast Fourier transforms."""

from __future__ import annotations

from phantora.compute.call import OpCall
from phantora.compute.families.streaming import items
from phantora.compute.work import Work, base_name, nbytes, numel, read, written

FAMILY = "spatial"
FFT_NAMES = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
# fmt: off
PREFIXES = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "_adaptive_avg_pool",
            "fractional_max_pool",
            "max_unpool", "upsample", "_upsample", "grid_sampler", "cudnn_grid_sampler", "roi_", "affine_grid",
            "cudnn_affine_grid")
# fmt: on


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    sources, targets = read(call), written(call)
    moved = sum(map(nbytes, sources)) + sum(map(nbytes, targets))
    count = max((numel(t) for t in (*sources, *targets)), default=0)
    if name in FFT_NAMES:  # cuFFT: two passes over memory for lengths beyond one block
        return (items(FAMILY, "offsets", 0, 2 * moved, num_kernels=2, flops=5 * count * max(count.bit_length(), 1)),)
    backward = name.endswith("_backward")
    if "pool" in name:
        kind = "pool_backward" if backward and "max" in name else "pool"
    else:
        kind = "upsample"
    return (items(FAMILY, kind, count, moved, flops=9 * count),)
