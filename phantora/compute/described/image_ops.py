"""Rows of pooling, interpolation and Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from phantora.compute.described.specs import Calls, Row, call, dense, dtype_of, image, number, shapes_of


def pool(row: Row) -> Calls:
    """max_pool2d, avg_pool2d (kernel or kernel_size, stride, padding), adaptive_avg_pool2d (output_size)."""
    shape, dtype, op = shapes_of(row)[0], dtype_of(row), row["op"].removesuffix("_backward")
    if len(shape) < 3:
        raise ValueError(f"{op} needs an image batch, not {list(shape)}")
    x, backward = image(shape, dtype, row), row["op"].endswith("_backward")
    if op.lstrip("_").startswith("adaptive"):
        side = number(row, "output_size", 1)
        y = image((*shape[:2], *(side for _ in shape[2:])), dtype, row)
        if side == 1 and "avg" in op:  # ATen takes the mean
            return (
                (call("mean", y, self=x, dim=tuple(range(2, len(shape)))),)
                if not backward
                else (call("div", x, self=x),)
            )
        name = "_adaptive_avg_pool2d"
        return (call(f"{name}_backward", x, grad_output=y, self=x),) if backward else (call(name, y, self=x),)
    kernel = number(row, "kernel_size", row.get("kernel", 2))
    stride, padding = number(row, "stride", kernel), number(row, "padding", 0)
    y = image((*shape[:2], *((s + 2 * padding - kernel) // stride + 1 for s in shape[2:])), dtype, row)
    index, size = dense(y.shape, "int64"), (kernel,) * (len(shape) - 2)
    if op.startswith("max"):
        if backward:
            return (
                call("max_pool2d_with_indices_backward", x, grad_output=y, self=x, kernel_size=size, indices=index),
            )
        return (call("max_pool2d_with_indices", [y, index], self=x, kernel_size=size),)
    if backward:
        return (call("avg_pool2d_backward", x, grad_output=y, self=x, kernel_size=size),)
    return (call("avg_pool2d", y, self=x, kernel_size=size),)


def interpolate(row: Row) -> Calls:
    """interpolate (mode), upsample_nearest2d, ..bilinear2d, ..bicubic2d: scale_factor (2) or size (of the output)."""
    shape, dtype = shapes_of(row)[0], dtype_of(row)
    backward = row["op"].endswith("_backward")
    mode = str(row.get("mode", next((m for m in ("nearest", "bilinear", "bicubic") if m in row["op"]), "nearest")))
    if mode not in ("nearest", "bilinear", "bicubic"):
        raise ValueError(f"mode must be nearest, bilinear or bicubic, not {mode!r}")
    size = row.get("size", row.get("output_size"))
    scale = row.get("scale_factor", row.get("scale", 2))
    scale = scale[0] if isinstance(scale, list) else scale
    sides = (
        size if isinstance(size, list) else [size] * (len(shape) - 2) if size else [int(s * scale) for s in shape[2:]]
    )
    x, y = image(shape, dtype, row), image((*shape[:2], *sides), dtype, row)
    name = f"upsample_{mode}2d"
    return (call(f"{name}_backward", x, grad_output=y),) if backward else (call(name, y, self=x),)


def fourier(row: Row) -> Calls:
    shape = shapes_of(row)[0]
    dims: tuple[Any, ...] = (len(shape) - 2, len(shape) - 1) if row["op"].endswith("2") else (len(shape) - 1,)
    if row["op"].startswith("rfft"):
        out = (*shape[:-1], shape[-1] // 2 + 1)
        return (call("_fft_r2c", dense(out, "complex64"), self=dense(shape, "float32"), dim=dims),)
    x = dense(shape, "complex64")
    return (call("_fft_c2c", x, self=x, dim=dims),)


def grid_sample(row: Row) -> Calls:
    source, grid = shapes_of(row, 2)[:2]
    dtype = dtype_of(row)
    x, g = dense(source, dtype), dense(grid, dtype)
    y = dense((*source[:2], *grid[1:-1]), dtype)
    if row["op"].endswith("backward"):
        return (call("grid_sampler_2d_backward", [x, g], grad_output=y, input=x, grid=g),)
    return (call("grid_sampler_2d", y, input=x, grid=g),)


def pixels(row: Row) -> int:
    """Elements of the first shape."""
    return math.prod(shapes_of(row)[0])
