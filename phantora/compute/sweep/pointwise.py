"""Cases of pointwise operators, casts, copies, joins and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phantora.compute.sweep.case import DTYPES, Case, Maker

_SIZES = (1 << 19, 1 << 23, 90_000_000)
aten = torch.ops.aten

_UNARY: dict[str, Callable[[Tensor], Any]] = {
    "exp": torch.exp,
    "rsqrt": torch.rsqrt,
    "sqrt": torch.sqrt,
    "log": torch.log,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "neg": torch.neg,
    "abs": torch.abs,
    "sin": torch.sin,
    "cos": torch.cos,
    "reciprocal": torch.reciprocal,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "mish": F.mish,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "clamp": lambda x: torch.clamp(x, -1.0, 1.0),
    "pow3": lambda x: torch.pow(x, 3.0),
    "gt": lambda x: x > 0.0,
    "isfinite": lambda x: torch.ne(x, x),
    "add_scalar": lambda x: x + 1.0,
    "div_scalar": lambda x: x / 3.0,
    "glu": F.glu,
    "log1p": lambda x: torch.log1p(x),
}
_BINARY: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sub": torch.sub,
    "div": torch.div,
    "maximum": torch.maximum,
    "lt": torch.lt,
    "atan2": torch.atan2,
    "sigmoid_backward": lambda g, y: aten.sigmoid_backward(g, y),
    "tanh_backward": lambda g, y: aten.tanh_backward(g, y),
    "threshold_backward": lambda g, x: aten.threshold_backward(g, x, 0),
    "gelu_tanh_backward": lambda g, x: aten.gelu_backward(g, x, approximate="tanh"),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "mul_": lambda x, y: x.mul_(y),
    "bce_logits": lambda x, y: F.binary_cross_entropy_with_logits(x, y),
    "mse_loss_mean": F.mse_loss,
    "smooth_l1": F.smooth_l1_loss,
    "copy_": lambda x, y: x.copy_(y),
    "leaky_relu_backward": lambda g, x: aten.leaky_relu_backward(g, x, 0.01, False),
}
_TERNARY: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.5),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.1),
    "lerp_tensor": torch.lerp,
}


def cases(maker: Maker) -> Iterator[Case]:
    for dtype in ("bf16", "fp32"):
        for numel in _SIZES:
            yield from _plain(maker, numel, dtype)
            yield from _masked(maker, numel, dtype)
            yield from _random(maker, numel, dtype)
    for dtype in ("fp16", "fp64", "int64", "bool", "int32"):
        for numel in (1 << 22, 1 << 26):
            yield from _other_dtypes(maker, numel, dtype)
    yield from _casts(maker)
    for scale in (1, 4, 16):
        for dtype in ("bf16", "fp32"):
            yield from _broadcast(maker, scale, dtype)
            yield from _copies(maker, scale, dtype)
            yield from _joins(maker, scale, dtype)


def _case(maker: Maker, op: str, numel: int, dtype: str, count: int, run: Callable[..., Any]) -> Case:
    make = lambda: tuple(maker.normal(numel, dtype=dtype) for _ in range(count))  # noqa: E731
    return Case(op=op, fields={"numel": numel, "dtype": dtype}, make=make, run=run)


def _plain(maker: Maker, numel: int, dtype: str) -> Iterator[Case]:
    for count, table in ((1, _UNARY), (2, _BINARY), (3, _TERNARY)):
        for op, run in table.items():
            yield _case(maker, op, numel, dtype, count, run)


def _masked(maker: Maker, numel: int, dtype: str) -> Iterator[Case]:
    fields = {"numel": numel, "dtype": dtype}

    def make() -> tuple[Any, ...]:
        return maker.normal(numel, dtype="bool"), maker.normal(numel, dtype=dtype), maker.normal(numel, dtype=dtype)

    yield Case(op="where", fields=fields, make=make, run=torch.where)
    yield Case(op="masked_fill", fields=fields, make=make, run=lambda m, x, y: x.masked_fill(m, 0.0))
    yield Case(op="masked_fill_", fields=fields, make=make, run=lambda m, x, y: x.masked_fill_(m, 0.0))
    yield Case(
        op="native_dropout_backward",
        fields=fields,
        make=make,
        run=lambda m, x, y: aten.native_dropout_backward(x, m, 1.1),
    )
    yield Case(op="masked_select", fields=fields, make=make, run=lambda m, x, y: x.masked_select(m), waits=True)


def _random(maker: Maker, numel: int, dtype: str) -> Iterator[Case]:
    table: dict[str, Callable[[Tensor], Any]] = {
        "normal_": lambda x: x.normal_(),
        "uniform_": lambda x: x.uniform_(),
        "bernoulli_": lambda x: x.bernoulli_(0.1),
        "exponential_": lambda x: x.exponential_(),
        "dropout": lambda x: aten.native_dropout(x, 0.1, True),
    }
    for op, run in table.items():
        yield _case(maker, op, numel, dtype, 1, run)
    if dtype == "fp32":
        yield _case(maker, "random_", numel, "int64", 1, lambda x: x.random_(0, 1000))
        yield _case(maker, "bernoulli", numel, dtype, 1, lambda x: torch.bernoulli(x.fill_(0.5)))
        randperm = lambda x: torch.randperm(min(numel, 1 << 23), device=x.device)  # noqa: E731
        yield Case(op="randperm", fields={"numel": min(numel, 1 << 23)}, make=lambda: (maker.normal(1),), run=randperm)


def _other_dtypes(maker: Maker, numel: int, dtype: str) -> Iterator[Case]:
    table: dict[str, tuple[int, Callable[..., Any]]] = {
        "add": (2, torch.add),
        "mul": (2, torch.mul),
        "clone": (1, torch.clone),
    }
    if dtype in ("fp16", "fp64"):
        table |= {"exp": (1, torch.exp), "gelu": (1, F.gelu), "sum": (1, torch.sum), "zero_": (1, lambda x: x.zero_())}
    else:
        table |= {"eq": (2, torch.eq), "sum": (1, torch.sum), "any": (1, torch.any)}
    if dtype == "bool":
        table |= {"logical_and": (2, torch.logical_and), "logical_not": (1, torch.logical_not), "all": (1, torch.all)}
    for op, (count, run) in table.items():
        yield _case(maker, op, numel, dtype, count, run)


def _casts(maker: Maker) -> Iterator[Case]:
    pairs = (
        ("bf16", "fp32"),
        ("fp32", "bf16"),
        ("fp16", "fp32"),
        ("fp32", "fp16"),
        ("bool", "fp32"),
        ("int64", "fp32"),
        ("fp32", "fp64"),
        ("bool", "bf16"),
        ("uint8", "fp32"),
        ("fp32", "int64"),
        ("int64", "int32"),
        ("bf16", "fp16"),
        ("bool", "int64"),
    )
    for source, target in pairs:
        for numel in _SIZES:
            yield Case(
                op="to",
                fields={"numel": numel, "dtype": source, "to": target},
                make=lambda n=numel, s=source: (maker.normal(n, dtype=s),),
                run=lambda x, t=target: x.to(DTYPES[t]),
            )
    for numel in _SIZES:
        make = lambda n=numel: (maker.normal(n), maker.normal(n, dtype="fp32"))  # noqa: E731
        for op, run in {"add": torch.add, "mul": torch.mul, "add_": lambda x, y: y.add_(x)}.items():
            yield Case(op=op, fields={"numel": numel, "dtype": "bf16", "other": "fp32"}, make=make, run=run)


def _broadcast(maker: Maker, scale: int, dtype: str) -> Iterator[Case]:
    patterns: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "row": ((1024 * scale, 1024), (1024,)),
        "column": ((1024 * scale, 1024), (1024 * scale, 1)),
        "scalar": ((1024 * scale, 1024), ()),
        "channel": ((2 * scale, 64, 64, 64), (1, 64, 1, 1)),
        "mask": ((scale, 16, 256, 256), (scale, 1, 256, 256)),
        "rotary": ((scale, 16, 512, 64), (1, 1, 512, 64)),
        "outer": ((scale, 256, 1, 64), (scale, 1, 256, 64)),
        "odd_row": ((1021 * scale, 997), (997,)),
    }
    for name, (left, right) in patterns.items():
        make = lambda a=left, b=right: (maker.normal(*a, dtype=dtype), maker.normal(*b, dtype=dtype))  # noqa: E731
        fields = {"shapes": [list(left), list(right)], "dtype": dtype}
        yield Case(op="mul", fields=fields, make=make, run=torch.mul)
    x, heads = (scale * 2, 512, 16, 64), (0, 2, 1, 3)
    views: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "permuted": lambda a, b: a.permute(heads) * b.view(x[0], 16, 512, 64),
        "half": lambda a, b: -a[..., :32],
        "rotary_view": lambda a, b: a.permute(heads) * b[0, :, 0, :],
        "strided": lambda a, b: a[..., ::2] + b[..., 1::2],
    }
    for name, run in views.items():
        make = lambda: (maker.normal(*x, dtype=dtype), maker.normal(*x, dtype=dtype))  # noqa: E731
        yield Case(op=f"view_{name}", fields={"shapes": [list(x)] * 2, "dtype": dtype}, make=make, run=run)
    mixed = (1024 * scale, 1024)
    make = lambda: (maker.normal(*mixed, dtype=dtype), maker.normal(1024, dtype="fp32"))  # noqa: E731
    yield Case(
        op="mul", fields={"shapes": [list(mixed), [1024]], "dtype": dtype, "other": "fp32"}, make=make, run=torch.mul
    )


def _copies(maker: Maker, scale: int, dtype: str) -> Iterator[Case]:
    patterns: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any]]] = {
        "heads_64": ((scale, 1024, 16, 64), lambda x: x.transpose(1, 2).contiguous()),
        "heads_128": ((scale, 512, 16, 128), lambda x: x.transpose(1, 2).contiguous()),
        "to_nhwc": ((scale, 64, 128, 128), lambda x: x.contiguous(memory_format=torch.channels_last)),
        "transposed": ((1024, 1024 * scale), lambda x: x.t().contiguous()),
        "batch_transposed": ((8 * scale, 384, 384), lambda x: x.transpose(1, 2).contiguous()),
        "third": ((1024 * scale, 3072), lambda x: x[:, 1024:2048].contiguous()),
        "cast_transposed": (
            (1024, 1024 * scale),
            lambda x: x.t().to(torch.float32 if dtype == "bf16" else torch.bfloat16),
        ),
        "swap_outer": ((512, 4 * scale, 512), lambda x: x.transpose(0, 1).contiguous()),
        "flip": ((scale, 1024, 1024), lambda x: x.flip(1)),
        "roll": ((scale, 1024, 1024), lambda x: x.roll(7, 1)),
        "repeat": ((256 * scale, 1024), lambda x: x.repeat(4, 1)),
        "tril": ((scale, 1024, 1024), torch.tril),
        "pad": ((scale, 64, 126, 126), lambda x: F.pad(x, (1, 1, 1, 1))),
        "repeat_heads": (
            (scale, 8, 512, 64),
            lambda x: x[:, :, None].expand(-1, 8, 4, -1, -1).reshape(scale, 32, 512, -1),
        ),
        "repeat_interleave": ((scale, 1024, 256), lambda x: x.repeat_interleave(4, 0)),
        "pixel_shuffle": ((scale, 64, 128, 128), lambda x: F.pixel_shuffle(x, 2)),
        "unfold": ((scale, 16, 64, 64), lambda x: F.unfold(x, 3, padding=1)),
    }
    for name, (shape, run) in patterns.items():
        make = lambda shape=shape: (maker.normal(*shape, dtype=dtype),)  # noqa: E731
        yield Case(op=f"copy_{name}", fields={"shapes": [list(shape)], "dtype": dtype}, make=make, run=run)


def _joins(maker: Maker, scale: int, dtype: str) -> Iterator[Case]:
    patterns: dict[str, tuple[list[tuple[int, ...]], int]] = {
        "rows": ([(512 * scale, 1024)] * 2, 0),
        "columns": ([(1024 * scale, 512)] * 2, 1),
        "heads": ([(scale, 16, 1024, 32)] * 2, -1),
        "channels": ([(scale, 64, 64, 64), (scale, 128, 64, 64)], 1),
        "many": ([(scale * 64, 128)] * 27, 1),
        "hundred": ([(scale * 16, 512)] * 100, 0),
        "narrow": ([(4096 * scale, 64), (4096 * scale, 1)], 1),
        "odd": ([(999 * scale, 333), (999 * scale, 111)], 1),
    }
    for name, (shapes, dim) in patterns.items():
        make = lambda shapes=shapes: ([maker.normal(*s, dtype=dtype) for s in shapes],)  # noqa: E731
        fields = {"shapes": [list(s) for s in shapes], "dim": dim, "dtype": dtype}
        yield Case(op="cat", fields=fields, make=make, run=lambda parts, d=dim: torch.cat(parts, d))
    half = (scale, 512, 16, 64)
    make = lambda: (maker.normal(*half, dtype=dtype).transpose(1, 2),)  # noqa: E731
    run = lambda x: torch.cat((x[..., 32:], x[..., :32]), -1)  # noqa: E731
    yield Case(op="cat_views", fields={"shapes": [list(half)], "dtype": dtype}, make=make, run=run)
    make = lambda: ([maker.normal(512 * scale, 256, dtype=dtype) for _ in range(8)],)  # noqa: E731
    yield Case(
        op="stack",
        fields={"shapes": [[512 * scale, 256]] * 8, "dim": 1, "dtype": dtype},
        make=make,
        run=lambda parts: torch.stack(parts, 1),
    )
    make = lambda: (maker.normal(1024 * scale, 1024, dtype=dtype),)  # noqa: E731
    split = lambda x: torch.split_with_sizes_copy(x, [256] * 4, 1)  # noqa: E731
    yield Case(
        op="split_with_sizes_copy", fields={"shapes": [[1024 * scale, 1024]], "dtype": dtype}, make=make, run=split
    )
