"""Cases of matrix products."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from phantora.compute.sweep.case import Case, Maker

_UNALIGNED = (50257, 30522, 32001, 151643)


def cases(maker: Maker) -> Iterator[Case]:
    yield from _products(maker)
    yield from _batched(maker)
    yield from _grouped(maker)
    yield from _low_precision(maker)


def product(maker: Maker, m: int, n: int, k: int, layout: str, dtype: str, bias: bool = False) -> Case:
    fields: dict[str, Any] = {"shapes": [[m, k], [k, n]], "layout": layout, "dtype": dtype}
    left, right = ((k, m) if layout[0] == "t" else (m, k)), ((n, k) if layout[1] == "t" else (k, n))

    def make() -> tuple[Any, ...]:
        extra = (maker.normal(n, dtype=dtype),) if bias else ()
        return (maker.normal(*left, dtype=dtype), maker.normal(*right, dtype=dtype), *extra)

    def run(a: Tensor, b: Tensor, *extra: Tensor) -> Tensor:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        a, b = (a.t() if layout[0] == "t" else a), (b.t() if layout[1] == "t" else b)
        return torch.addmm(*extra, a, b) if bias else torch.mm(a, b)

    if bias:
        fields["shapes"] = [[n], *fields["shapes"]]
    return Case(op="addmm" if bias else "mm", fields=fields, make=make, run=run)


def random_size(rng: random.Random, low: float, high: float, multiple: int) -> int:
    return max(multiple, int(2 ** rng.uniform(low, high)) // multiple * multiple)


def _products(maker: Maker) -> Iterator[Case]:
    rng = random.Random(7)
    for n in _UNALIGNED:  # the output projection of language models whose vocabulary is not padded
        for m, k in ((2048, 768), (8192, 768), (4096, 1024), (4096, 4096), (512, 2048)):
            yield product(maker, m, n, k, "nt", "bf16")
            yield product(maker, m, k, n, "nn", "bf16")
            yield product(maker, n, k, m, "tn", "bf16")
    plan = [
        ("bf16", 130, 8),
        ("bf16", 70, 1),
        ("bf16", 30, 2),
        ("bf16", 25, 4),
        ("fp16", 36, 8),
        ("fp16", 14, 1),
        ("tf32", 60, 8),
        ("tf32", 24, 1),
        ("fp32", 50, 8),
        ("fp32", 16, 1),
        ("fp64", 30, 8),
    ]
    for dtype, count, multiple in plan:
        for i in range(count):
            m, n, k = (random_size(rng, 4, 13.3, multiple) for _ in range(3))
            if m * n * k < 2 ** (38 if dtype in ("bf16", "fp16", "tf32") else 35):
                yield product(maker, m, n, k, ("nt", "nn", "tn")[i % 3], dtype)
    for i in range(60):  # a few rows: decoding and small batches
        m, n, k = int(2 ** rng.uniform(0, 8)), random_size(rng, 8, 14.5, 64), random_size(rng, 8, 13.5, 64)
        yield product(maker, m, n, k, ("nt", "nt", "nn")[i % 3], ("bf16", "bf16", "fp32", "tf32")[i % 4])
    for i in range(70):
        m, n, k = (random_size(rng, low, 13.3, 8) for low in (3, 5, 5))
        yield product(maker, m, n, k, ("nt", "nn")[i % 2], ("bf16", "bf16", "tf32", "fp32")[i % 4], bias=True)
    for m, k in ((1024, 1024), (16384, 4096), (4096, 16384)):
        make = lambda m=m, k=k: (maker.normal(m, k), maker.normal(k))  # noqa: E731
        yield Case(op="mv", fields={"shapes": [[m, k], [k]], "dtype": "bf16"}, make=make, run=torch.mv)


def _batched(maker: Maker) -> Iterator[Case]:
    rng = random.Random(8)
    shapes = [(b * 16, s, s, d) for b, s, d in ((1, 1024, 64), (2, 512, 64), (4, 197, 64), (2, 1024, 128), (8, 77, 64))]
    shapes += [(b, s, d, k) for b, s, k, d in shapes]
    shapes += [(16384, 27, 27, 128), (4096, 27, 27, 64), (8192, 16, 16, 32), (4096, 32, 32, 32), (2048, 49, 49, 32)]
    for _ in range(50):
        shapes.append((int(2 ** rng.uniform(1, 9)), *(random_size(rng, 4, 11.5, 8) for _ in range(3))))
    for i, (b, m, n, k) in enumerate(shapes):
        if b * m * n * k >= 2**37 or b * (m * n + m * k + n * k) >= 2**30:
            continue
        for layout, dtype in (
            (("nt", "nn", "tn")[i % 3], "bf16"),
            (("nn", "nt")[i % 2], ("tf32", "fp32", "fp16")[i % 3]),
        ):
            yield batched_product(maker, b, m, n, k, layout, dtype)


def batched_product(maker: Maker, b: int, m: int, n: int, k: int, layout: str, dtype: str) -> Case:
    left, right = ((b, k, m) if layout[0] == "t" else (b, m, k)), ((b, n, k) if layout[1] == "t" else (b, k, n))

    def run(x: Tensor, y: Tensor) -> Tensor:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        return torch.bmm(x.mT if layout[0] == "t" else x, y.mT if layout[1] == "t" else y)

    make = lambda: (maker.normal(*left, dtype=dtype), maker.normal(*right, dtype=dtype))  # noqa: E731
    fields = {"shapes": [[b, m, k], [b, k, n]], "layout": layout, "dtype": dtype}
    return Case(op="bmm", fields=fields, make=make, run=run)


def _grouped(maker: Maker) -> Iterator[Case]:
    for groups, tokens, k, n in (
        (8, 4096, 1024, 3584),
        (8, 16384, 1024, 3584),
        (8, 8192, 4096, 14336),
        (8, 8192, 14336, 4096),
        (64, 16384, 2048, 1408),
        (64, 4096, 1408, 2048),
        (16, 32768, 2048, 2048),
        (128, 16384, 2048, 768),
        (4, 2048, 4096, 4096),
        (32, 32768, 4096, 1536),
    ):
        yield grouped_product(maker, groups, tokens, k, n, "2d3d")
        yield grouped_product(maker, groups, tokens, k, n, "2d2d")


def grouped_product(maker: Maker, groups: int, tokens: int, k: int, n: int, kind: str) -> Case:
    def make() -> tuple[Any, ...]:
        ends = torch.arange(1, groups + 1, device=maker.device, dtype=torch.int32) * (tokens // groups)
        if kind == "2d3d":
            return (maker.normal(tokens, k), maker.normal(groups, n, k).transpose(1, 2), ends)
        return (maker.normal(tokens, k).t(), maker.normal(tokens, n), ends)

    shapes = [[tokens, k], [groups, k, n]] if kind == "2d3d" else [[k, tokens], [tokens, n]]
    fields = {"shapes": shapes, "groups": groups, "dtype": "bf16"}
    return Case(op="_grouped_mm", fields=fields, make=make, run=lambda a, b, ends: torch._grouped_mm(a, b, offs=ends))


def _low_precision(maker: Maker) -> Iterator[Case]:
    rng = random.Random(9)
    shapes = [
        (m, n, k) for m in (16, 1024, 8192) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336), (8192, 8192))
    ]
    shapes += [tuple(random_size(rng, 5, 13.3, 16) for _ in range(3)) for _ in range(24)]  # type: ignore[misc]
    for i, (m, n, k) in enumerate(shapes):
        yield scaled_product(maker, m, n, k, rowwise=False)
        if i % 2 == 0:
            yield scaled_product(maker, m, n, k, rowwise=True)
        if i % 3 == 0 and m > 16:
            make = lambda m=m, n=n, k=k: (maker.normal(m, k, dtype="int8"), maker.normal(n, k, dtype="int8").t())  # noqa: E731
            fields = {"shapes": [[m, k], [k, n]], "dtype": "int8"}
            yield Case(op="_int_mm", fields=fields, make=make, run=torch._int_mm)


def scaled_product(maker: Maker, m: int, n: int, k: int, *, rowwise: bool) -> Case:
    def make() -> tuple[Any, ...]:
        a, b = (maker.normal(*shape).to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
        scale_a, scale_b = ((m, 1), (1, n)) if rowwise else ((), ())
        return a, b.t(), torch.ones(scale_a, device=maker.device), torch.ones(scale_b, device=maker.device)

    def run(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor) -> Tensor:
        return torch._scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)

    fields = {"shapes": [[m, k], [k, n]], "dtype": "fp8", "rowwise": rowwise}
    return Case(op="_scaled_mm", fields=fields, make=make, run=run)
