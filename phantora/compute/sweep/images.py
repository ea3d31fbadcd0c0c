"""Cases of convolution, batch and group normalisation, pooling, interpolation and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phantora.compute.sweep.case import Case, Maker, backward_case

# (batch, channels in, side, channels out, kernel, stride, padding)
_CONVOLUTIONS = (
    (32, 3, 224, 64, 7, 2, 3),
    (128, 3, 224, 64, 7, 2, 3),
    (64, 3, 224, 768, 16, 16, 0),
    (64, 3, 224, 96, 4, 4, 0),
    (32, 64, 56, 64, 3, 1, 1),
    (128, 64, 56, 64, 1, 1, 0),
    (128, 64, 56, 64, 3, 1, 1),
    (128, 256, 56, 64, 1, 1, 0),
    (128, 64, 56, 256, 1, 1, 0),
    (32, 256, 56, 512, 1, 2, 0),
    (128, 128, 28, 128, 3, 1, 1),
    (128, 512, 28, 128, 1, 1, 0),
    (32, 256, 28, 256, 3, 2, 1),
    (128, 256, 14, 1024, 1, 1, 0),
    (128, 256, 14, 256, 3, 1, 1),
    (32, 1024, 14, 2048, 1, 2, 0),
    (128, 512, 7, 512, 3, 1, 1),
    (128, 2048, 7, 512, 1, 1, 0),
    (4, 4, 64, 320, 3, 1, 1),
    (4, 320, 64, 320, 3, 1, 1),
    (4, 640, 64, 320, 3, 1, 1),
    (4, 320, 64, 320, 3, 2, 1),
    (4, 640, 32, 640, 3, 1, 1),
    (4, 1280, 16, 1280, 3, 1, 1),
    (4, 2560, 8, 1280, 3, 1, 1),
    (4, 640, 32, 640, 1, 1, 0),
    (4, 320, 64, 4, 3, 1, 1),
    (16, 48, 96, 96, 3, 1, 1),
    (16, 32, 128, 32, 3, 1, 1),
    (8, 96, 112, 24, 1, 1, 0),
    (1, 128, 256, 128, 3, 1, 1),
    (64, 192, 17, 192, 5, 1, 2),
    (8, 512, 64, 512, 3, 1, 1),
    (256, 3, 32, 64, 3, 1, 1),
    (256, 128, 16, 128, 3, 1, 1),
)
_NORMALISED = (
    (32, 64, 112),
    (128, 64, 112),
    (32, 256, 56),
    (128, 64, 56),
    (128, 128, 28),
    (32, 512, 28),
    (128, 256, 14),
    (128, 1024, 14),
    (128, 512, 7),
    (128, 2048, 7),
    (16, 32, 112),
    (256, 64, 32),
    (8, 24, 112),
    (1, 64, 256),
    (256, 512, 4),
    (64, 144, 56),
)
_LAYOUTS = (("bf16", True), ("bf16", False), ("fp32", False), ("fp32", True))


def cases(maker: Maker) -> Iterator[Case]:
    for dtype, last in _LAYOUTS:
        for size in _CONVOLUTIONS:
            yield from convolution(maker, size, dtype, last)
        for size in _NORMALISED:
            yield from batch_norm(maker, size, dtype, last)
        yield from _separable(maker, dtype, last)
        yield from _pooling(maker, dtype, last)
        yield from _group_norm(maker, dtype, last)
    yield from _other_convolutions(maker)
    yield from _fourier(maker)


def convolution(maker: Maker, size: tuple[int, ...], dtype: str, last: bool, groups: int = 1) -> Iterator[Case]:
    n, c, side, o, k, stride, padding = size
    out = (side + 2 * padding - k) // stride + 1
    fields: dict[str, Any] = {
        "shapes": [[n, c, side, side], [o, c // groups, k, k]],
        "stride": stride,
        "padding": padding,
        "dtype": dtype,
        "channels_last": last,
    }
    if groups > 1:
        fields["groups"] = groups
    x = lambda *shape: maker.last(*shape, dtype=dtype, channels_last=last)  # noqa: E731
    pair = lambda: (x(n, c, side, side), x(o, c // groups, k, k))  # noqa: E731
    yield Case(op="conv2d", fields=fields, make=pair, run=lambda a, w: F.conv2d(a, w, None, stride, padding, 1, groups))
    for op, mask in (("conv2d_dgrad", [True, False, False]), ("conv2d_wgrad", [False, True, False])):
        if op == "conv2d_dgrad" and c < 8:
            continue
        run = lambda g, a, w, m=mask: torch.ops.aten.convolution_backward(  # noqa: E731
            g, a, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, m
        )
        yield Case(op=op, fields=fields, make=lambda: (x(n, o, out, out), *pair()), run=run)


def _separable(maker: Maker, dtype: str, last: bool) -> Iterator[Case]:
    for n, c, side, k, stride in (
        (32, 96, 56, 7, 1),
        (32, 384, 14, 7, 1),
        (64, 32, 112, 3, 1),
        (64, 144, 56, 3, 2),
        (64, 576, 14, 3, 1),
        (64, 960, 7, 5, 1),
    ):
        yield from convolution(maker, (n, c, side, c, k, stride, k // 2), dtype, last, groups=c)
    yield from convolution(maker, (32, 256, 56, 256, 3, 1, 1), dtype, last, groups=32)
    yield from convolution(maker, (32, 1024, 14, 1024, 3, 1, 1), dtype, last, groups=32)


def _other_convolutions(maker: Maker) -> Iterator[Case]:
    for dtype in ("bf16", "fp32"):
        for n, c, length, o, k, stride in (
            (16, 80, 3000, 512, 3, 1),
            (16, 512, 3000, 512, 3, 2),
            (8, 512, 16000, 512, 3, 2),
            (32, 768, 500, 768, 1, 1),
        ):
            make = lambda n=n, c=c, t=length, o=o, k=k, d=dtype: (
                maker.normal(n, c, t, dtype=d),
                maker.normal(o, c, k, dtype=d),
            )  # noqa: E731
            run = lambda x, w, s=stride, p=k // 2: F.conv1d(x, w, None, s, p)  # noqa: E731
            fields = {"shapes": [[n, c, length], [o, c, k]], "stride": stride, "padding": k // 2, "dtype": dtype}
            yield Case(op="conv1d", fields=fields, make=make, run=run)
            yield backward_case("conv1d_backward", fields, make, run)
        for n, c, side, o in ((2, 32, 64, 32), (1, 64, 48, 128)):
            make = lambda n=n, c=c, s=side, o=o, d=dtype: (
                maker.normal(n, c, 16, s, s, dtype=d),
                maker.normal(o, c, 3, 3, 3, dtype=d),
            )  # noqa: E731
            fields = {"shapes": [[n, c, 16, side, side], [o, c, 3, 3, 3]], "stride": 1, "padding": 1, "dtype": dtype}
            yield Case(op="conv3d", fields=fields, make=make, run=lambda x, w: F.conv3d(x, w, None, 1, 1))
            yield backward_case("conv3d_backward", fields, make, lambda x, w: F.conv3d(x, w, None, 1, 1))
        for n, c, side, o, k in ((16, 256, 32, 128, 4), (16, 512, 16, 256, 2), (32, 128, 28, 64, 2)):
            make = lambda n=n, c=c, s=side, o=o, k=k, d=dtype: (
                maker.normal(n, c, s, s, dtype=d),
                maker.normal(c, o, k, k, dtype=d),
            )  # noqa: E731
            run = lambda x, w, p=(k - 2) // 2: F.conv_transpose2d(x, w, None, 2, p)  # noqa: E731
            fields = {
                "shapes": [[n, c, side, side], [c, o, k, k]],
                "stride": 2,
                "padding": (k - 2) // 2,
                "dtype": dtype,
            }
            yield Case(op="conv_transpose2d", fields=fields, make=make, run=run)
            yield backward_case("conv_transpose2d_backward", fields, make, run)


def batch_norm(maker: Maker, size: tuple[int, ...], dtype: str, last: bool) -> Iterator[Case]:
    n, c, side = size
    fields = {"shapes": [[n, c, side, side]], "dtype": dtype, "channels_last": last}

    def make() -> tuple[Any, ...]:
        x = maker.last(n, c, side, side, dtype=dtype, channels_last=last)
        w, b, m, v = (maker.normal(c, dtype="fp32") for _ in range(4))
        return x, w, b, m.requires_grad_(False), v.abs()

    def prepare() -> tuple[Any, ...]:
        x, w, b, m, v = make()
        leaves = [x.requires_grad_(), w.requires_grad_(), b.requires_grad_()]
        out = F.batch_norm(x, m, v, w, b, True)
        return out, leaves, torch.randn_like(out)

    yield Case(op="batch_norm", fields=fields, make=make, run=lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, True))
    grad = lambda out, leaves, g: torch.autograd.grad(out, leaves, g, retain_graph=True)  # noqa: E731
    yield Case(op="batch_norm_backward", fields=fields, make=prepare, run=grad)
    if side in (56, 14):
        run = lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, False)  # noqa: E731
        yield Case(op="batch_norm_eval", fields=fields, make=make, run=run)


def _group_norm(maker: Maker, dtype: str, last: bool) -> Iterator[Case]:
    for n, c, side, groups in (
        (4, 320, 64, 32),
        (4, 640, 32, 32),
        (4, 1280, 16, 32),
        (4, 2560, 8, 32),
        (1, 128, 512, 32),
        (16, 256, 56, 32),
        (32, 64, 112, 8),
        (4, 960, 64, 32),
        (64, 512, 7, 16),
    ):
        yield from group_norm_pair(maker, (n, c, side, groups), dtype, last)


def group_norm_pair(maker: Maker, size: tuple[int, int, int, int], dtype: str, last: bool) -> Iterator[Case]:
    """Forward and backward of (batch, channels, side, groups)."""
    n, c, side, groups = size
    fields = {"shapes": [[n, c, side, side]], "groups": groups, "dtype": dtype, "channels_last": last}

    def make() -> tuple[Any, ...]:
        x = maker.last(n, c, side, side, dtype=dtype, channels_last=last)
        return x, maker.normal(c, dtype=dtype), maker.normal(c, dtype=dtype)

    run = lambda x, w, b: F.group_norm(x, groups, w, b)  # noqa: E731
    yield Case(op="group_norm", fields=fields, make=make, run=run)
    yield backward_case("group_norm_backward", fields, make, run)


def _pooling(maker: Maker, dtype: str, last: bool) -> Iterator[Case]:
    pools: dict[str, tuple[tuple[tuple[int, int, int], ...], Callable[[Tensor], Tensor]]] = {
        "max_pool2d": (((64, 64, 112), (128, 64, 112), (16, 256, 56)), lambda x: F.max_pool2d(x, 3, 2, 1)),
        "max_pool2d_2": (((64, 64, 224), (16, 512, 28)), lambda x: F.max_pool2d(x, 2)),
        "avg_pool2d": (((64, 256, 56), (128, 128, 28)), lambda x: F.avg_pool2d(x, 2)),
        "adaptive_avg_pool2d": (((64, 2048, 7), (256, 512, 14)), lambda x: F.adaptive_avg_pool2d(x, 1)),
        "adaptive_avg_pool2d_7": (((64, 512, 14), (16, 256, 56)), lambda x: F.adaptive_avg_pool2d(x, 7)),
        "upsample_nearest2d": (
            ((4, 640, 32), (4, 1280, 16), (16, 64, 64)),
            lambda x: F.interpolate(x, scale_factor=2.0),
        ),
        "upsample_bilinear2d": (
            ((4, 256, 64), (16, 64, 64), (8, 19, 128)),
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        ),
        "upsample_bicubic2d": (
            ((1, 768, 14), (8, 3, 224)),
            lambda x: F.interpolate(x, scale_factor=2.0, mode="bicubic"),
        ),
    }
    for op, (sizes, run) in pools.items():
        for size in sizes:
            yield from _image_pair(maker, op, size, dtype, last, run)


def sized(maker: Maker, size: tuple[int, int, int], dtype: str, last: bool) -> Iterator[Case]:
    """Pooling and interpolation of (batch, channels, side)."""
    table: dict[str, Callable[[Tensor], Tensor]] = {
        "max_pool2d": lambda x: F.max_pool2d(x, 3, 2, 1),
        "max_pool2d_2": lambda x: F.max_pool2d(x, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
        "upsample_nearest2d": lambda x: F.interpolate(x, scale_factor=2.0),
        "upsample_bilinear2d": lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
    }
    for op, run in table.items():
        yield from _image_pair(maker, op, size, dtype, last, run)


def _image_pair(
    maker: Maker, op: str, size: tuple[int, int, int], dtype: str, last: bool, run: Callable[[Tensor], Tensor]
) -> Iterator[Case]:
    n, c, side = size
    fields = {"shapes": [[n, c, side, side]], "dtype": dtype, "channels_last": last}
    make = lambda: (maker.last(n, c, side, side, dtype=dtype, channels_last=last),)  # noqa: E731
    yield Case(op=op, fields=fields, make=make, run=run)
    yield backward_case(f"{op}_backward", fields, make, run)


def _fourier(maker: Maker) -> Iterator[Case]:
    table: dict[str, Callable[[Tensor], Any]] = {"rfft": torch.fft.rfft, "fft2": torch.fft.fft2, "fft": torch.fft.fft}
    for shape in ((1024, 1024), (64, 4096), (4096, 256, 16), (32, 16384), (16, 512, 512), (1000, 1000)):
        for op, run in table.items():
            fields = {"shapes": [list(shape)], "dtype": "fp32"}
            yield Case(op=op, fields=fields, make=lambda s=shape: (maker.normal(*s, dtype="fp32"),), run=run)
    for n, c, side in ((16, 64, 64), (4, 256, 128)):
        make = lambda n=n, c=c, s=side: (
            maker.normal(n, c, s, s, dtype="fp32"),
            maker.normal(n, s, s, 2, dtype="fp32").tanh(),
        )  # noqa: E731
        run = lambda x, g: F.grid_sample(x, g, align_corners=False)  # noqa: E731
        fields = {"shapes": [[n, c, side, side], [n, side, side, 2]], "dtype": "fp32"}
        yield Case(op="grid_sampler_2d", fields=fields, make=make, run=run)
        yield backward_case("grid_sampler_2d_backward", fields, make, run)
