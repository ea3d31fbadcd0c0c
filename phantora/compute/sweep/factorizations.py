"""Cases of linear algebra: factorizations, solvers, eigenvalues, matrix functions.

Most wait for the device inside (they check `info`), and some run their control flow on the host, so their time is that
of their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from phantora.compute.sweep.case import DTYPES, Case, Maker

linalg = torch.linalg

# (matrices, rows, columns), small ones first: an eigenvalue problem of 4,096 takes seconds.
_SIZES = (
    (1, 64, 64),
    (1, 256, 256),
    (1, 512, 512),
    (1, 1024, 1024),
    (1, 2048, 2048),
    (16, 64, 64),
    (16, 256, 256),
    (256, 32, 32),
    (1024, 8, 8),
    (4, 512, 512),
    (1, 4096, 4096),
)
_TALL = ((1, 1024, 64), (1, 4096, 512), (64, 128, 32), (1, 512, 2048))

_POSITIVE: dict[str, tuple[int, Callable[[Tensor, Tensor], Any]]] = {  # name -> (greatest size, call)
    "linalg_cholesky_ex": (8192, lambda a, b: linalg.cholesky_ex(a)),
    "linalg_eigh": (2048, lambda a, b: linalg.eigh(a)),
    "linalg_eigvalsh": (2048, lambda a, b: linalg.eigvalsh(a)),
    "linalg_inv_ex": (4096, lambda a, b: linalg.inv_ex(a)),
    "linalg_lu_factor_ex": (8192, lambda a, b: linalg.lu_factor_ex(a)),
    "linalg_solve_ex": (4096, lambda a, b: linalg.solve_ex(a, b)),
    "linalg_det": (2048, lambda a, b: linalg.det(a)),
    "linalg_matrix_exp": (1024, lambda a, b: linalg.matrix_exp(a)),
    "linalg_pinv": (1024, lambda a, b: linalg.pinv(a)),
    "linalg_eig": (256, lambda a, b: linalg.eig(a)),
}
_GENERAL: dict[str, tuple[int, Callable[[Tensor], Any]]] = {
    "linalg_qr": (4096, linalg.qr),
    "linalg_svd": (1024, lambda a: linalg.svd(a, full_matrices=False)),
    "linalg_svdvals": (1024, linalg.svdvals),
}


def cases(maker: Maker) -> Iterator[Case]:
    for dtype in ("fp32", "fp64"):
        for size in _SIZES if dtype == "fp32" else _SIZES[1:5]:
            yield from _square(maker, size, dtype)
        for size in (*_SIZES, *_TALL) if dtype == "fp32" else _SIZES[1:4]:
            yield from _rectangular(maker, size, dtype)


def _square(maker: Maker, size: tuple[int, int, int], dtype: str) -> Iterator[Case]:
    batch, n, _ = size
    shape = (batch, n, n) if batch > 1 else (n, n)
    fields = {"shapes": [list(shape)], "dtype": dtype}

    def make() -> tuple[Any, ...]:
        a = maker.normal(*shape, dtype=dtype)
        positive = a @ a.mT / n + torch.eye(n, device=maker.device, dtype=DTYPES[dtype])
        return positive, maker.normal(*shape[:-1], 8, dtype=dtype)

    for op, (greatest, run) in _POSITIVE.items():
        if n <= greatest and (op != "linalg_eig" or batch == 1):
            yield Case(op=op, fields=fields, make=make, run=run, max_sets=1, waits=True)
    lower = lambda: (make()[0].tril(), maker.normal(*shape[:-1], 64, dtype=dtype))  # noqa: E731
    run = lambda a, b: linalg.solve_triangular(a, b, upper=False)  # noqa: E731
    yield Case(op="linalg_solve_triangular", fields={**fields, "k": 64}, make=lower, run=run, max_sets=2)


def _rectangular(maker: Maker, size: tuple[int, int, int], dtype: str) -> Iterator[Case]:
    batch, m, n = size
    shape = (batch, m, n) if batch > 1 else (m, n)
    fields = {"shapes": [list(shape)], "dtype": dtype}
    make = lambda: (maker.normal(*shape, dtype=dtype),)  # noqa: E731
    for op, (greatest, run) in _GENERAL.items():
        if max(m, n) <= greatest or (op == "linalg_svd" and m * n <= 1 << 21):
            yield Case(op=op, fields=fields, make=make, run=run, max_sets=1, waits=True)
