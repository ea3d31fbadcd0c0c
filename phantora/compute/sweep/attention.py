"""Cases of scaled dot-product attention, with operands laid out as models have them: (batch, tokens, heads, size)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from phantora.compute.sweep.case import Case, Maker

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}

# (batch, heads, key heads, queries, keys, head size)
_SIZES = (
    (8, 12, 12, 1024, 1024, 64),
    (4, 32, 8, 2048, 2048, 64),
    (2, 32, 8, 4096, 4096, 128),
    (1, 32, 32, 4096, 4096, 128),
    (1, 32, 8, 8192, 8192, 128),
    (16, 16, 16, 512, 512, 64),
    (4, 25, 25, 1024, 1024, 64),
    (64, 12, 12, 197, 197, 64),
    (1, 12, 12, 256, 256, 64),
    (1, 32, 32, 1024, 1024, 128),
    (8, 16, 16, 384, 384, 80),
    (2, 16, 16, 2048, 2048, 96),
    (1, 8, 8, 4096, 4096, 256),
    (4, 8, 1, 2048, 2048, 256),
    (4, 8, 8, 4096, 77, 40),
    (4, 8, 8, 1024, 77, 80),
    (4, 8, 8, 1024, 1024, 80),
    (4, 8, 8, 4096, 4096, 40),
    (32, 32, 32, 1, 2048, 128),
    (8, 32, 8, 128, 4096, 128),
    (2, 16, 16, 1500, 1500, 64),
    (16, 12, 12, 512, 512, 32),
    (1, 16, 16, 16384, 16384, 64),
    (2, 40, 40, 2048, 2048, 128),
    (3, 10, 10, 700, 700, 72),
    (24, 20, 4, 333, 333, 64),
)


def cases(maker: Maker) -> Iterator[Case]:
    for size in _SIZES:
        for backend in _BACKENDS:
            square = size[3] == size[4]
            for causal in (False, True) if square else (False,):
                yield from pair(maker, size, backend, causal=causal)
    for size in (_SIZES[0], _SIZES[5], _SIZES[9], _SIZES[11], _SIZES[20], _SIZES[23]):
        for backend in _BACKENDS:
            yield from pair(maker, size, backend, causal=True, dropout=0.1)
            if backend != "flash":
                yield from pair(maker, size, backend, mask="heads" if size[1] == 12 else "shared")
        yield from pair(maker, size, "cudnn", causal=True, dtype="fp16")
        yield from pair(maker, size, "flash", causal=True, dtype="fp16")
    for size in (_SIZES[0], _SIZES[5], _SIZES[9], _SIZES[7]):
        yield from pair(maker, size, "efficient", causal=True, dtype="fp32")
        yield from pair(maker, size, "efficient", dtype="fp32")


def pair(
    maker: Maker,
    size: tuple[int, ...],
    backend: str,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    mask: str | None = None,
    dtype: str = "bf16",
    dense: bool = False,
) -> Iterator[Case]:
    """Forward and backward of one size; `dense` operands are contiguous as (batch, heads, tokens, size)."""
    b, h, hk, sq, sk, d = size
    if backend == "efficient":
        hk = h  # models repeat keys and values for it
    fields: dict[str, Any] = {
        "shapes": [[b, h, sq, d], [b, hk, sk, d], [b, hk, sk, d]],
        "causal": causal,
        "dtype": dtype,
        "backend": backend,
        **({} if dense else {"layout": "bshd"}),
    }
    if dropout:
        fields["dropout"] = True
    if mask:
        fields["mask"] = mask

    def make() -> tuple[Any, ...]:
        def leaf(s: int, heads: int) -> Tensor:
            if dense:
                return maker.normal(b, heads, s, d, dtype=dtype).requires_grad_()
            return maker.normal(b, s, heads, d, dtype=dtype).transpose(1, 2).requires_grad_()

        bias = (
            maker.normal(b if mask == "heads" else 1, h if mask == "heads" else 1, sq, sk, dtype=dtype)
            if mask
            else None
        )
        return leaf(sq, h), leaf(sk, hk), leaf(sk, hk), bias

    def forward(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        with sdpa_kernel(_BACKENDS[backend]):
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=dropout, is_causal=causal, enable_gqa=hk != h
            )

    def prepare() -> tuple[Any, ...]:
        q, k, v, bias = make()
        out = forward(q, k, v, bias)
        return out, [q, k, v], torch.randn_like(out)

    yield Case(op="sdpa_fwd", fields=fields, make=make, run=forward)
    grad = lambda out, leaves, g: torch.autograd.grad(out, leaves, g, retain_graph=True)  # noqa: E731
    yield Case(op="sdpa_bwd", fields=fields, make=prepare, run=grad)
