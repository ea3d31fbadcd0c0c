"""Random shapes, seeded, of the operators that training steps spend their time in.

The other modules list chosen shapes, which leave wide gaps; here sizes are drawn from those that models use (widths of
published transformers and image networks) and from the whole range between them. Shuffled, so a sweep cut short is
still a fair sample.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from phantora.compute.sweep import attention, dense, images, indexing, lists, rows
from phantora.compute.sweep.case import Case, Maker, backward_case

_WIDTHS = (
    256, 320, 512, 640, 768, 1024, 1280, 1536, 1600, 2048, 2304, 2560, 3072, 3584, 4096, 5120, 6144, 6912, 7168, 8192,
    9216, 10240, 11008, 12288, 13824, 14336, 16384, 18944, 22016, 28672, 32000, 50304, 128256,
)  # fmt: skip
_TOKENS = (
    1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384,
    32768,
)  # fmt: skip
_COLUMNS = (
    64, 80, 128, 160, 256, 320, 512, 640, 768, 1000, 1024, 1280, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 8192,
    10000, 12288, 16384, 30522, 32000, 32768, 50257, 50304, 65536, 100000, 128256, 151936,
)  # fmt: skip
_CHANNELS = (16, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024, 1280, 2048)
_SIDES = (7, 8, 10, 14, 16, 20, 28, 32, 40, 56, 64, 80, 96, 112, 128)
_LENGTHS = (64, 128, 197, 256, 384, 512, 577, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384)


def cases(maker: Maker) -> Iterator[Case]:
    rng = random.Random(23)
    yield from _products(maker, rng)
    yield from _attention(maker, rng)
    yield from _images(maker, rng)
    yield from _rows(maker, rng)
    yield from _pointwise(maker, rng)
    yield from _lookups(maker, rng)
    yield from _lists(maker, rng)


def _log_uniform(rng: random.Random, low: float, high: float, multiple: int = 1) -> int:
    """2^low .. 2^high, rounded down to a multiple."""
    return max(multiple, int(2 ** rng.uniform(low, high)) // multiple * multiple)


def _product_size(rng: random.Random, limit: int) -> tuple[int, int, int]:
    """(m, n, k) of a layer of a transformer, or anything between 16 and 16,384."""
    while True:
        if rng.random() < 0.6:
            m, n, k = rng.choice(_TOKENS), rng.choice(_WIDTHS), rng.choice(_WIDTHS[:-3])
        else:
            multiple = rng.choice((8, 8, 16, 64, 128))
            m, n, k = (_log_uniform(rng, 4, 14, multiple) for _ in range(3))
        if m * n * k <= limit and max(m * n, m * k, n * k) <= 1 << 29:
            return m, n, k


def _products(maker: Maker, rng: random.Random) -> Iterator[Case]:
    plan = (
        ("bf16", 330, ("nt",), 1 << 39),
        ("bf16", 160, ("nn", "tn"), 1 << 39),
        ("fp16", 60, ("nt", "nn", "tn"), 1 << 38),
        ("tf32", 110, ("nt", "nn", "tn"), 1 << 38),
        ("fp32", 90, ("nt", "nn", "tn"), 1 << 36),
    )
    for dtype, count, layouts, limit in plan:
        for _ in range(count):
            yield dense.product(maker, *_product_size(rng, limit), rng.choice(layouts), dtype)
    for _ in range(110):
        dtype = rng.choice(("bf16", "bf16", "bf16", "fp16", "tf32", "fp32"))
        yield dense.product(maker, *_product_size(rng, 1 << 37), "nt", dtype, bias=True)
    for _ in range(60):  # rows that do not start at multiples of 16 bytes
        m, n, k = (_log_uniform(rng, 5, 13) for _ in range(3))
        yield dense.product(maker, m, n, k, rng.choice(("nt", "nn", "tn")), "bf16")
    for _ in range(130):
        b = _log_uniform(rng, 1, 9)
        m, n, k = (rng.choice((16, 32, 49, 64, 96, 128, 197, 256, 512, 1024, 2048, 4096)) for _ in range(3))
        if b * m * n * k < 1 << 37 and b * max(m * n, m * k, n * k) < 1 << 28:
            yield dense.batched_product(
                maker, b, m, n, k, rng.choice(("nn", "nt", "tn")), rng.choice(("bf16", "bf16", "fp32", "tf32"))
            )
    for _ in range(24):
        groups, tokens = rng.choice((4, 8, 16, 32, 64)), 1 << rng.randint(11, 15)
        k, n = rng.choice(_WIDTHS[4:14]), rng.choice(_WIDTHS[4:14])
        yield dense.grouped_product(maker, groups, tokens, k, n, rng.choice(("2d3d", "2d3d", "2d2d")))
        m, n, k = _product_size(rng, 1 << 39)
        yield dense.scaled_product(maker, max(m // 16 * 16, 16), n // 16 * 16, k // 16 * 16, rowwise=rng.random() < 0.4)


def _attention(maker: Maker, rng: random.Random) -> Iterator[Case]:
    made = 0
    while made < 64:
        b, h, d = 1 << rng.randint(0, 6), rng.choice((8, 12, 16, 20, 25, 32, 40, 64)), rng.choice((64, 64, 128, 128, 0))
        d = d or rng.choice((32, 80, 96, 256))
        s = rng.choice(_LENGTHS)
        if not (1 << 19) <= b * h * s * d <= 1 << 27 or b * h * s * s > 1 << 33:
            continue
        made += 1
        hk = rng.choice([n for n in (1, 2, 4, 8, h) if h % n == 0]) if rng.random() < 0.25 else h
        for backend in ("flash", "efficient", "cudnn"):
            for causal in (False, True):
                is_dense = hk == h and rng.random() < 0.6
                yield from attention.pair(maker, (b, h, hk, s, s, d), backend, causal=causal, dense=is_dense)


def _convolution_size(rng: random.Random) -> tuple[tuple[int, ...], int]:
    """((batch, channels, side, channels out, kernel, stride, padding), groups)."""
    while True:
        n, c, side, o = 1 << rng.randint(0, 8), rng.choice(_CHANNELS), rng.choice(_SIDES), rng.choice(_CHANNELS)
        k, stride, groups = rng.choice((1, 1, 1, 3, 3, 3, 3, 3, 5, 7)), rng.choice((1, 1, 1, 2)), 1
        draw = rng.random()
        if draw < 0.06:
            c, side, k, stride = 3, rng.choice((32, 128, 224, 256)), rng.choice((3, 4, 7)), rng.choice((1, 2))
        elif draw < 0.16 and k > 1:
            o, groups = c, c
        elif draw < 0.2 and k == 3 and c >= 64:
            o, groups = c, rng.choice((4, 8, 32))
        elif draw < 0.5:
            o = c
        if k > side or c % groups or c > 1024 and k > 1:
            continue
        macs = n * side * side * c * o // groups * k * k // stride**2
        if 1 << 24 <= macs <= 1 << 38 and n * side * side * max(c, o) <= 1 << 28:
            return (n, c, side, o, k, stride, k // 2), groups


def _images(maker: Maker, rng: random.Random) -> Iterator[Case]:
    for i in range(150):
        size, groups = _convolution_size(rng)
        chosen = (("bf16", True), ("bf16", False), ("fp32", False)) if i % 3 else (("fp32", True), ("fp16", True))
        for dtype, last in chosen:
            yield from images.convolution(maker, size, dtype, last, groups)
    for _ in range(36):
        n, c, side = 1 << rng.randint(0, 8), rng.choice(_CHANNELS), rng.choice(_SIDES)
        if 1 << 18 <= n * c * side * side <= 1 << 27:
            for dtype, last in (("bf16", True), ("bf16", False), ("fp32", False), ("fp32", True)):
                yield from images.batch_norm(maker, (n, c, side), dtype, last)
    for _ in range(16):
        n, c, side = 1 << rng.randint(0, 6), rng.choice(_CHANNELS[5:]), rng.choice(_SIDES)
        if 1 << 18 <= n * c * side * side <= 1 << 27:
            for dtype, last in (("bf16", False), ("fp32", False), ("bf16", True)):
                yield from images.group_norm_pair(maker, (n, c, side, rng.choice((8, 16, 32))), dtype, last)
                yield from images.sized(maker, (n, c, side), dtype, last)


def _row_size(rng: random.Random, columns: Sequence[int]) -> tuple[int, int]:
    while True:
        r, c = _log_uniform(rng, 5, 18, rng.choice((1, 8, 64))), rng.choice(columns)
        if 1 << 17 <= r * c <= 1 << 28:
            return r, c


def _rows(maker: Maker, rng: random.Random) -> Iterator[Case]:
    for i in range(34):
        r, c = _row_size(rng, _COLUMNS)
        dtype = ("bf16", "fp32")[i % 2]
        yield from rows.normalised(maker, r, c, dtype)
        fields = {"shapes": [[r, c]], "dtype": dtype}
        one = lambda r=r, c=c, d=dtype: (maker.normal(r, c, dtype=d),)  # noqa: E731
        yield Case(op="sum_dim", fields=fields, make=one, run=lambda x: x.sum(0))
        yield Case(op="transpose_contiguous", fields=fields, make=one, run=lambda x: x.t().contiguous())
        yield Case(op="cumsum", fields=fields, make=one, run=lambda x: x.cumsum(-1))
        yield Case(op="topk2", fields=fields, make=one, run=lambda x: x.topk(2))
        if i % 2:
            pair = lambda r=r, c=c: (maker.normal(r, c, dtype="fp32"), maker.index(c, r))  # noqa: E731
            yield Case(op="nll_loss", fields=fields, make=pair, run=F.nll_loss)
            yield backward_case("nll_loss_backward", fields, pair, F.nll_loss)
    for i in range(40):
        r, c = _row_size(rng, (8, 16, 50, 100, 200, 512, 1000, 1024, 2048, 3000, 4096, 5000, 8192, 20000, 50257, 128256))
        dtype, k = ("bf16", "fp32", "int64")[i % 3], rng.choice((1, 4, 5, 8, 10, 20, 40, 64, 100))
        make = lambda r=r, c=c, d=dtype: (maker.normal(r, c, dtype=d),)  # noqa: E731
        fields = {"shapes": [[r, c]], "dim": -1, "dtype": dtype}
        if r * c <= 1 << 26:
            yield Case(op="sort", fields=fields, make=make, run=lambda x: x.sort(-1))
        if k < c:
            yield Case(op="topk", fields={**fields, "k": k}, make=make, run=lambda x, k=k: x.topk(k))
    for i in range(28):
        n = _log_uniform(rng, 9, 25)
        dtype = ("fp32", "bf16", "int64")[i % 3]
        make = lambda n=n, d=dtype: (maker.normal(n, dtype=d),)  # noqa: E731
        fields = {"shapes": [[n]], "dim": -1, "dtype": dtype}
        yield Case(op="sort", fields=fields, make=make, run=lambda x: x.sort(-1))
        yield Case(op="cumsum", fields=fields, make=make, run=lambda x: x.cumsum(0))
        yield Case(op="topk", fields={**fields, "k": 16}, make=make, run=lambda x: x.topk(16))
        whole = lambda n=n: (maker.index(max(n // 4, 10), n),)  # noqa: E731
        for op, run in (("unique", torch.unique), ("nonzero", torch.nonzero), ("bincount", torch.bincount)):
            yield Case(op=op, fields={"numel": n, "dtype": "int64"}, make=whole, run=run, waits=True)
        yield Case(op="randperm", fields={"numel": n}, make=lambda: (), run=lambda n=n: torch.randperm(n, device=maker.device))
    for _ in range(36):
        rank = rng.choice((2, 3, 4))
        shape = tuple(_log_uniform(rng, 1, 24 / rank + 2) for _ in range(rank))
        if 1 << 16 <= torch.Size(shape).numel() <= 1 << 28:
            dims = tuple(sorted(rng.sample(range(rank), rng.randint(1, rank - 1))))
            yield from rows.reductions(maker, shape, dims, rng.choice(("bf16", "fp32")))


_POINTWISE: dict[str, tuple[int, Callable[..., Any]]] = {  # name -> (operands, call)
    "add": (2, torch.add),
    "add_": (2, lambda x, y: x.add_(y)),
    "mul": (2, torch.mul),
    "mul_scalar": (1, lambda x: x * 0.5),
    "silu": (1, F.silu),
    "gelu": (1, F.gelu),
    "gelu_backward": (2, lambda g, x: torch.ops.aten.gelu_backward(g, x)),
    "silu_backward": (2, lambda g, x: torch.ops.aten.silu_backward(g, x)),
    "relu": (1, torch.relu),
    "tanh": (1, torch.tanh),
    "pow": (1, lambda x: torch.pow(x, 2)),
    "dropout": (1, lambda x: torch.ops.aten.native_dropout(x, 0.1, True)),
    "zero_": (1, lambda x: x.zero_()),
    "clone": (1, torch.clone),
    "sum": (1, torch.sum),
    "norm": (1, torch.linalg.vector_norm),
    "where": (2, lambda x, y: torch.where(x > 0, x, y)),
    "cat": (2, lambda x, y: torch.cat([x, y])),
    "exp": (1, torch.exp),
}


def _pointwise(maker: Maker, rng: random.Random) -> Iterator[Case]:
    for _ in range(16):
        n = _log_uniform(rng, 16, 28, rng.choice((1, 8, 1024)))
        for dtype in ("bf16", "fp32"):
            for op in rng.sample(sorted(_POINTWISE), 9):
                count, run = _POINTWISE[op]
                make = lambda n=n, c=count, d=dtype: tuple(maker.normal(n, dtype=d) for _ in range(c))  # noqa: E731
                yield Case(op=op, fields={"numel": n, "dtype": dtype}, make=make, run=run)


def _lookups(maker: Maker, rng: random.Random) -> Iterator[Case]:
    for i in range(24):
        vocabulary, width = _log_uniform(rng, 8, 20), rng.choice((16, 32, 64, 128, 256, 512, 768, 1024, 2048, 4096))
        tokens, dtype = _log_uniform(rng, 8, 18), ("fp32", "bf16")[i % 2]
        if vocabulary * width <= 1 << 29 and tokens * width <= 1 << 27:
            yield from indexing.tables(maker, vocabulary, width, tokens, dtype)
            yield from indexing.row_operators(maker, vocabulary, width, tokens, dtype)
    for _ in range(10):
        vocabulary, width, bags = _log_uniform(rng, 10, 20), rng.choice((16, 32, 64, 128, 256)), _log_uniform(rng, 8, 16)
        length = rng.choice((1, 2, 5, 10, 30))
        if vocabulary * width <= 1 << 29 and bags * length * width <= 1 << 27:
            yield from indexing.bag_operators(maker, vocabulary, width, bags, length)


def _lists(maker: Maker, rng: random.Random) -> Iterator[Case]:
    for i in range(9):
        count, dtype = _log_uniform(rng, 2, 8), ("fp32", "fp32", "bf16")[i % 3]
        wide = [(_log_uniform(rng, 6, 12, 8), rng.choice(_WIDTHS[:12])) for _ in range(count)]
        small = [(rng.choice(_WIDTHS[:12]),) for _ in range(count)]
        shapes = [shape for pair in zip(wide, small) for shape in pair]
        if sum(torch.Size(shape).numel() for shape in shapes) <= 1 << 29:
            yield from lists.list_operators(maker, f"sampled{i}", shapes, dtype)
