"""Pooling, interpolation and sampling of images, and fast Fourier transforms.

Elements are those of the larger side; `more` holds what a window or a plane adds. Layouts have kernels of their own.
"""

from __future__ import annotations

import math

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.streaming import items
from phantora.compute.work import Work, base_name, ints, is_channels_last, item_bytes, nbytes, numel, read, written

FAMILY = "spatial"
FFT_NAMES = ("_fft_r2c", "_fft_c2r", "_fft_c2c")
# fmt: off
PREFIXES = ("max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "_adaptive_avg_pool", "fractional_max_pool",
            "max_unpool", "upsample", "_upsample", "grid_sampler", "cudnn_grid_sampler", "roi_", "affine_grid",
            "cudnn_affine_grid")
# fmt: on

# Kinds that were measured; others behave like the one that they resemble.
_LIKE = {
    "upsample_trilinear3d": "upsample_bilinear2d",
    "upsample_linear1d": "upsample_bilinear2d",
    "upsample_nearest1d": "upsample_nearest2d",
    "upsample_nearest3d": "upsample_nearest2d",
    "_upsample_nearest_exact2d": "upsample_nearest2d",
    "_upsample_bilinear2d_aa": "upsample_bicubic2d",
    "_upsample_bicubic2d_aa": "upsample_bicubic2d",
    "max_pool3d_with_indices": "max_pool2d_with_indices",
    "avg_pool3d": "avg_pool2d",
    "adaptive_avg_pool2d": "_adaptive_avg_pool2d",
    "adaptive_max_pool2d": "_adaptive_avg_pool2d",
    "grid_sampler_3d": "grid_sampler_2d",
}


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    sources, targets = read(call), written(call)
    if not targets or not sources:
        return ()
    moved = sum(map(nbytes, sources)) + sum(map(nbytes, targets))
    largest = max((*sources, *targets), key=numel)
    if name in FFT_NAMES:
        return (_fourier(call, name, largest, moved),)
    stem, backward = name.removesuffix("_backward"), "_backward" if name.endswith("_backward") else ""
    layout = "nhwc" if any(map(is_channels_last, (*sources, *targets))) else "nchw"
    smallest = min(numel(sources[0]), numel(targets[0]))
    return (
        items(
            FAMILY,
            f"{name}-{layout}",
            numel(largest),
            moved,
            num_kernels=2 if backward or "bicubic" in name else 1,
            flops=9 * numel(largest),
            op=str(item_bytes(sources[0].dtype)),
            like=f"{_LIKE[stem]}{backward}-{layout}" if stem in _LIKE else "",
            more=(
                math.prod(ints(call.arg("kernel_size"), 2, 1)),
                numel(largest) // max(smallest, 1),
                _planes(sources[0]),
            ),
        ),
    )


def _planes(tensor: TensorSpec) -> int:
    """Batch x channels: some kernels give a plane to a block or loop over planes in one thread."""
    return math.prod(tensor.shape[:2]) if len(tensor.shape) > 2 else 1


def _fourier(call: OpCall, name: str, largest: TensorSpec, moved: int) -> Work:
    """cuFFT: one pass over memory per transformed dimension, two beyond 8,192 points."""
    dims = call.arg("dim")
    lengths = [largest.shape[int(d)] for d in dims] if isinstance(dims, tuple) and largest.shape else [1]  # type: ignore[arg-type]
    count = numel(largest)
    flops = int(5 * count * max(math.log2(max(math.prod(lengths), 2)), 1))
    kernels = max(len(lengths), 1)
    return items(FAMILY, name, count * kernels, moved * kernels, num_kernels=kernels, flops=flops, more=(max(lengths),))
