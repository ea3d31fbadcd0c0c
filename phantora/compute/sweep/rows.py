"""Cases that normalise, reduce, scan or sort rows, and losses on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from phantora.compute.sweep.case import Case, Maker, backward_case

aten = torch.ops.aten

# (rows, columns): few and many rows, short, medium and long ones, powers of two and not.
_GRID = (
    (64, 128),
    (64, 4096),
    (16, 50257),
    (512, 768),
    (512, 8192),
    (2048, 1024),
    (2048, 32768),
    (2048, 50257),
    (4096, 257),
    (8192, 512),
    (8192, 1600),
    (8192, 5120),
    (16384, 256),
    (16384, 2048),
    (32768, 768),
    (65536, 128),
    (98304, 1024),
    (131072, 64),
    (262144, 197),
    (4096, 16384),
    (1024, 128256),
    (393216, 512),
)
_REDUCED: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((512, 1024), (0,)),
    ((4096, 4096), (0,)),
    ((16384, 768), (0,)),
    ((65536, 64), (0,)),
    ((32768, 3072), (0,)),
    ((8192, 128256), (0,)),
    ((200000, 256), (0,)),
    ((64, 512, 1024), (1,)),
    ((8, 2048, 1024), (1,)),
    ((256, 196, 768), (1,)),
    ((64, 256, 28, 28), (0, 2, 3)),
    ((64, 256, 28, 28), (2, 3)),
    ((32, 64, 112, 112), (2, 3)),
    ((16, 2048, 7, 7), (2, 3)),
    ((8, 1024, 768), (0, 1)),
    ((16, 12, 512, 512), (0,)),
    ((4096, 1024), (1,)),
    ((65536, 128), (1,)),
    ((1048576, 16), (1,)),
    ((1048576, 3), (1,)),
    ((32, 1000000), (1,)),
    ((256, 65536), (1,)),
    ((100000, 8, 32), (2,)),
    ((8192, 50257), (1,)),
)


def cases(maker: Maker) -> Iterator[Case]:
    for dtype in ("bf16", "fp32"):
        for rows, columns in _GRID:
            yield from normalised(maker, rows, columns, dtype)
        for shape, dims in _REDUCED:
            yield from reductions(maker, shape, dims, dtype)
        yield from _scans(maker, dtype)
        yield from _sorts(maker, dtype)
    yield from _sorted_integers(maker)
    yield from _losses(maker)


def normalised(maker: Maker, r: int, c: int, dtype: str) -> Iterator[Case]:
    fields = {"shapes": [[r, c]], "dtype": dtype}
    x = lambda: (maker.normal(r, c, dtype=dtype),)  # noqa: E731
    scaled = lambda: (maker.normal(r, c, dtype=dtype), maker.normal(c, dtype=dtype), maker.normal(c, dtype=dtype))  # noqa: E731
    layer = lambda x, w, b: F.layer_norm(x, (c,), w, b)  # noqa: E731
    rms = lambda x, w, b: F.rms_norm(x, (c,), w, 1e-6)  # noqa: E731
    if r * c <= 1 << 28:
        yield Case(op="softmax", fields=fields, make=x, run=lambda x: torch.softmax(x, -1))
        yield Case(op="log_softmax", fields=fields, make=x, run=lambda x: torch.log_softmax(x, -1))
        yield backward_case("softmax_backward", fields, x, lambda x: torch.softmax(x, -1))
        yield backward_case("log_softmax_backward", fields, x, lambda x: torch.log_softmax(x, -1))
        yield Case(op="argmax", fields=fields, make=x, run=lambda x: x.argmax(-1))
        yield Case(op="mean_dim", fields=fields, make=x, run=lambda x: x.mean(-1, keepdim=True))
    if c <= 16384:
        yield Case(op="layer_norm", fields=fields, make=scaled, run=layer)
        yield Case(op="rms_norm", fields=fields, make=scaled, run=rms)
        yield backward_case("layer_norm_backward", fields, scaled, layer)
        pair = lambda: (maker.normal(r, c, dtype=dtype), maker.normal(c, dtype=dtype))  # noqa: E731
        yield backward_case("rms_norm_backward", fields, pair, lambda x, w: F.rms_norm(x, (c,), w, 1e-6))


def reductions(maker: Maker, shape: tuple[int, ...], dims: tuple[int, ...], dtype: str) -> Iterator[Case]:
    fields = {"shapes": [list(shape)], "dim": list(dims), "dtype": dtype}
    table: dict[str, Callable[[Tensor], Any]] = {
        "sum_dim": lambda x: x.sum(dims),
        "amax": lambda x: x.amax(dims),
        "var_mean": lambda x: torch.var_mean(x, dims),
        "norm_dim": lambda x: torch.linalg.vector_norm(x, dim=dims),
    }
    if len(dims) == 1:
        table |= {"max_dim": lambda x: x.max(dims[0]), "any": lambda x: x.any(dims[0])}
    for op, run in table.items():
        yield Case(op=op, fields=fields, make=lambda: (maker.normal(*shape, dtype=dtype),), run=run)


def _scans(maker: Maker, dtype: str) -> Iterator[Case]:
    for shape, dim in (
        ((1 << 16,), 0),
        ((1 << 22,), 0),
        ((1 << 26,), 0),
        ((8192, 64), 1),
        ((4096, 4096), 0),
        ((8192, 8), 0),
        ((128, 65536), 1),
        ((65536, 257), 1),
        ((64, 1024, 256), 1),
    ):
        fields = {"shapes": [list(shape)], "dim": dim, "dtype": dtype}
        yield Case(
            op="cumsum",
            fields=fields,
            make=lambda s=shape: (maker.normal(*s, dtype=dtype),),
            run=lambda x, d=dim: x.cumsum(d),
        )


def _sorts(maker: Maker, dtype: str) -> Iterator[Case]:
    for shape in (
        (1000,),
        (1 << 14,),
        (1 << 17,),
        (1 << 20,),
        (1 << 24,),
        (8192, 8),
        (8192, 64),
        (4096, 1024),
        (512, 4096),
        (64, 32000),
        (16, 128256),
        (100, 3000),
    ):
        fields = {"shapes": [list(shape)], "dim": -1, "dtype": dtype}
        make = lambda s=shape: (maker.normal(*s, dtype=dtype),)  # noqa: E731
        yield Case(op="sort", fields=fields, make=make, run=lambda x: x.sort(-1))
        for k in (2, 8, 50):
            if shape[-1] > k and shape[-1] != 1 << 14:
                yield Case(op="topk", fields={**fields, "k": k}, make=make, run=lambda x, k=k: x.topk(k))
    for rows, columns in ((1, 32000), (64, 50257), (1, 128256)):
        fields = {"shapes": [[rows, columns]], "dtype": dtype}
        make = lambda r=rows, c=columns: (maker.normal(r, c, dtype=dtype).softmax(-1),)  # noqa: E731
        yield Case(op="multinomial", fields=fields, make=make, run=lambda p: p.multinomial(1))


def _sorted_integers(maker: Maker) -> Iterator[Case]:
    for n in (4096, 1 << 16, 1 << 20, 1 << 23):
        fields = {"numel": n, "dtype": "int64"}
        make = lambda n=n: (maker.index(max(n // 4, 10), n),)  # noqa: E731
        yield Case(op="sort", fields=fields, make=make, run=lambda x: x.sort())
        yield Case(op="argsort", fields={**fields, "stable": True}, make=make, run=lambda x: x.argsort(stable=True))
        yield Case(op="cumsum", fields=fields, make=make, run=lambda x: x.cumsum(0))
        yield Case(op="unique", fields=fields, make=make, run=torch.unique, waits=True)
        yield Case(
            op="unique_inverse", fields=fields, make=make, run=lambda x: x.unique(return_inverse=True), waits=True
        )
        yield Case(op="unique_consecutive", fields=fields, make=make, run=torch.unique_consecutive, waits=True)
        yield Case(op="nonzero", fields=fields, make=make, run=lambda x: x.nonzero(), waits=True)
        yield Case(op="bincount", fields=fields, make=make, run=lambda x: x.bincount(), waits=True)
        yield Case(
            op="histc",
            fields=fields,
            make=lambda n=n: (maker.normal(n, dtype="fp32"),),
            run=lambda x: x.histc(64),
            waits=True,
        )
        edges = lambda n=n: (torch.linspace(-3, 3, 1024, device=maker.device), maker.normal(n, dtype="fp32"))  # noqa: E731
        yield Case(op="searchsorted", fields=fields, make=edges, run=torch.searchsorted)
        yield Case(op="isin", fields=fields, make=lambda n=n: (maker.index(n, n), maker.index(n, 100)), run=torch.isin)


def _losses(maker: Maker) -> Iterator[Case]:
    for r, c in ((512, 1000), (4096, 32000), (8192, 50257), (65536, 150), (2048, 128256), (16384, 10)):
        for dtype in ("fp32", "bf16"):
            fields = {"shapes": [[r, c]], "dtype": dtype}
            make = lambda r=r, c=c, d=dtype: (maker.normal(r, c, dtype=d), maker.index(c, r))  # noqa: E731
            yield Case(op="nll_loss", fields=fields, make=make, run=F.nll_loss)
            yield backward_case("nll_loss_backward", fields, make, F.nll_loss)
            spread = lambda x, y: F.nll_loss(x, y, reduction="none")  # noqa: E731
            yield Case(op="nll_loss_none", fields=fields, make=make, run=spread)
