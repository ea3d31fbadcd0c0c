"""Cases of lookups and scattered writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phantora.compute.sweep.case import Case, Maker, backward_case

aten = torch.ops.aten

# (vocabulary, width, tokens)
_TABLES = (
    (50257, 768, 256),
    (50257, 768, 1024),
    (50257, 768, 3000),
    (50257, 768, 3100),
    (50257, 768, 16384),
    (32000, 4096, 2048),
    (32000, 4096, 8192),
    (128256, 2048, 2048),
    (128256, 4096, 16384),
    (400000, 128, 65536),
    (400000, 64, 16384),
    (1000000, 16, 262144),
    (512, 768, 16384),
    (2, 1024, 16384),
    (30522, 1024, 16384),
    (250112, 512, 4096),
    (1000, 32, 100000),
)


def cases(maker: Maker) -> Iterator[Case]:
    for dtype in ("fp32", "bf16"):
        for vocabulary, width, tokens in _TABLES:
            yield from tables(maker, vocabulary, width, tokens, dtype)
        for rows, width, count in (
            (100_000, 1, 2_000_000),
            (100_000, 8, 2_000_000),
            (100_000, 64, 500_000),
            (100_000, 256, 500_000),
            (16384, 4096, 32768),
            (4096, 1024, 8192),
        ):
            yield from row_operators(maker, rows, width, count, dtype)
        for shape in ((4096, 1024), (65536, 64), (8192, 50257)):
            yield from _elements(maker, shape, dtype)
    yield from _bags(maker)


def tables(maker: Maker, vocabulary: int, width: int, tokens: int, dtype: str) -> Iterator[Case]:
    fields = {"vocab": vocabulary, "dim": width, "tokens": tokens, "dtype": dtype}
    table = lambda: (maker.normal(vocabulary, width, dtype=dtype), maker.index(vocabulary, tokens))  # noqa: E731
    grads = lambda: (maker.normal(tokens, width, dtype=dtype), maker.index(vocabulary, tokens))  # noqa: E731
    yield Case(op="embedding", fields=fields, make=table, run=lambda w, i: F.embedding(i, w))
    yield Case(
        op="embedding_dense_backward",
        fields=fields,
        make=grads,
        run=lambda g, i: aten.embedding_dense_backward(g, i, vocabulary, -1, False),
    )


def row_operators(maker: Maker, rows: int, width: int, count: int, dtype: str) -> Iterator[Case]:
    fields = {"vocab": rows, "dim": width, "tokens": count, "dtype": dtype}

    def make() -> tuple[Any, ...]:
        return maker.normal(rows, width, dtype=dtype), maker.index(rows, count), maker.normal(count, width, dtype=dtype)

    table: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
        "index_select": lambda t, i, x: t.index_select(0, i),
        "index": lambda t, i, x: t[i],
        "index_add": lambda t, i, x: t.index_add_(0, i, x),
        "index_copy": lambda t, i, x: t.index_copy_(0, i, x),
        "index_put": lambda t, i, x: t.index_put_((i,), x),
        "index_put_accumulate": lambda t, i, x: t.index_put_((i,), x, accumulate=True),
        "scatter_add": lambda t, i, x: t.scatter_add_(0, i[:, None].expand(-1, width), x),
        "gather": lambda t, i, x: t.gather(0, i[:, None].expand(-1, width)),
        "scatter_reduce": lambda t, i, x: t.scatter_reduce_(0, i[:, None].expand(-1, width), x, "amax"),
    }
    for op, run in table.items():
        yield Case(op=op, fields=fields, make=make, run=run, max_sets=3)


def _elements(maker: Maker, shape: tuple[int, int], dtype: str) -> Iterator[Case]:
    fields = {"shapes": [list(shape)], "dtype": dtype}

    def make() -> tuple[Any, ...]:
        return maker.normal(*shape, dtype=dtype), maker.index(shape[1], *shape), maker.index(shape[1], shape[0], 1)

    table: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
        "gather_full": lambda x, i, j: x.gather(1, i),
        "gather_column": lambda x, i, j: x.gather(1, j),
        "scatter_full": lambda x, i, j: x.scatter_(1, i, 0.5),
        "scatter_column": lambda x, i, j: x.scatter_(1, j, 1.0),
        "scatter_add_full": lambda x, i, j: x.scatter_add_(1, i, x),
        "index_columns": lambda x, i, j: x[:, j[: shape[1] // 2, 0]],
        "index_pairs": lambda x, i, j: x[torch.remainder(j, shape[0])[:, 0], j[:, 0]],
        "mask_nonzero": lambda x, i, j: x[x > 0],
        "put_pairs": lambda x, i, j: x.index_put_((torch.arange(shape[0], device=x.device), j[:, 0]), x[0, 0]),
        "index_fill": lambda x, i, j: x.index_fill_(1, j[: shape[1] // 2, 0], 0.0),
    }
    for op, run in table.items():
        yield Case(op=op, fields=fields, make=make, run=run, waits=op == "mask_nonzero", max_sets=2)


def _bags(maker: Maker) -> Iterator[Case]:
    for vocabulary, width, bags, length in (
        (400000, 128, 16384, 4),
        (1000000, 64, 8192, 10),
        (100000, 32, 65536, 1),
        (50000, 256, 4096, 50),
        (400000, 128, 2048, 4),
    ):
        yield from bag_operators(maker, vocabulary, width, bags, length)


def bag_operators(maker: Maker, vocabulary: int, width: int, bags: int, length: int) -> Iterator[Case]:
    """embedding_bag and its backward pass in its three modes."""
    for mode in ("sum", "mean", "max"):
        fields = {
            "vocab": vocabulary,
            "dim": width,
            "tokens": bags * length,
            "bags": bags,
            "mode": mode,
            "dtype": "fp32",
        }
        make = lambda: (maker.normal(vocabulary, width, dtype="fp32"), maker.index(vocabulary, bags, length))  # noqa: E731
        run = lambda w, i, m=mode: F.embedding_bag(i, w, mode=m)  # noqa: E731
        yield Case(op="embedding_bag", fields=fields, make=make, run=run)
        yield backward_case("embedding_bag_backward", fields, make, run, max_sets=2)
