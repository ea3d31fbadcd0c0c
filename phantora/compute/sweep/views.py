"""Operators on views: what attention does with its heads, and rows and columns that are broadcast.

Such kernels are not the vectorised ones of contiguous tensors, and their time depends on which dimension is dense.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from phantora.compute.sweep.case import Case, Maker

_LENGTHS = (64, 128, 197, 256, 384, 512, 577, 768, 1024, 1536, 2048, 4096)


def cases(maker: Maker) -> Iterator[Case]:
    """Heads of attention moved, halved and rotated; rows and columns broadcast."""
    rng = random.Random(29)
    for i in range(64):
        b, h = 1 << rng.randint(0, 5), rng.choice((4, 8, 12, 16, 25, 32))
        s, d = rng.choice(_LENGTHS), rng.choice((32, 64, 80, 128))
        if not 1 << 18 <= b * h * s * d <= 1 << 27:
            continue
        dtype = ("bf16", "fp32")[i % 2]
        fields = {"shapes": [[b, s, h, d]], "dtype": dtype}
        make = lambda b=b, s=s, h=h, d=d, t=dtype: (maker.normal(b, s, h, d, dtype=t), maker.normal(s, d, dtype=t))  # noqa: E731
        table: dict[str, Callable[..., Any]] = {
            "copy_heads": lambda x, c: x.transpose(1, 2).contiguous(),
            "copy_heads_back": lambda x, c: x.view(x.shape[0], x.shape[2], x.shape[1], -1).transpose(1, 2).contiguous(),
            "cast_heads": lambda x, c: x.transpose(1, 2).to(torch.float32 if x.dtype == torch.bfloat16 else torch.bfloat16),
            "cat_halves": lambda x, c: torch.cat((-x.transpose(1, 2)[..., x.shape[-1] // 2 :], x.transpose(1, 2)[..., : x.shape[-1] // 2]), -1),
            "neg_half": lambda x, c: -x.transpose(1, 2)[..., x.shape[-1] // 2 :],
            "copy_half": lambda x, c: x.transpose(1, 2)[..., x.shape[-1] // 2 :].contiguous(),
            "mul_rotary": lambda x, c: x.transpose(1, 2) * c,
            "mul_rotary_dense": lambda x, c: x.view(x.shape[0], x.shape[2], x.shape[1], x.shape[3]) * c,
            "add_views": lambda x, c: x.transpose(1, 2) + x.transpose(1, 2),
            "mul_column": lambda x, c: x * x[..., :1],
            "mul_row": lambda x, c: x * c[0],
            "add_row_cast": lambda x, c: x + c[0].float(),
            "expand_heads": lambda x, c: x[:, :, :, None, :].expand(-1, -1, -1, 2, -1).contiguous(),
            "sum_to_row": lambda x, c: x.sum((0, 1)),
            "copy_batch_first": lambda x, c: x.transpose(0, 1).contiguous(),
        }
        for op, run in table.items():
            if op != "add_row_cast" or dtype == "bf16":
                yield Case(op=op, fields=fields, make=make, run=run)
