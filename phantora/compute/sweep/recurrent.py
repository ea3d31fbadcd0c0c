"""Cases of recurrent layers through cuDNN, single cells, and their backward passes.

Each may hang in cuDNN (seen: a GRU of 2,048 units in float16), so the sweep gives this family a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from phantora.compute.sweep.case import DTYPES, Case, Maker

# (time steps, batch, width of the input, hidden units, layers), the likeliest to work first
_SIZES = (
    (64, 64, 512, 512, 1),
    (35, 64, 200, 200, 1),
    (50, 256, 128, 128, 1),
    (128, 32, 256, 256, 2),
    (100, 20, 650, 650, 2),
    (48, 32, 768, 768, 1),
    (32, 128, 1024, 1024, 1),
    (256, 16, 512, 512, 1),
    (512, 8, 256, 256, 1),
    (16, 512, 512, 512, 1),
    (100, 64, 80, 320, 3),
    (35, 20, 1500, 1500, 2),
    (1000, 4, 64, 64, 1),
    (64, 1, 512, 512, 1),
)


def cases(maker: Maker) -> Iterator[Case]:
    for kind in ("lstm", "gru", "rnn"):
        for dtype in ("fp32", "bf16", "fp16"):
            for size in _SIZES if kind == "lstm" else _SIZES[::2]:
                yield from _pair(maker, kind, dtype, size)
    for size in (_SIZES[0], _SIZES[3], _SIZES[10]):
        yield from _pair(maker, "lstm", "fp32", size, bidirectional=True)
        yield from _pair(maker, "gru", "fp32", size, bidirectional=True)


def _pair(
    maker: Maker, kind: str, dtype: str, size: tuple[int, ...], *, bidirectional: bool = False
) -> Iterator[Case]:
    steps, batch, width, hidden, layers = size
    fields: dict[str, Any] = {
        "steps": steps, "batch": batch, "input": width, "hidden": hidden, "layers": layers, "dtype": dtype
    }  # fmt: skip
    if bidirectional:
        fields["bidirectional"] = True

    def make() -> tuple[Any, ...]:
        cell = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[kind]
        layer = cell(width, hidden, layers, bidirectional=bidirectional, device=maker.device, dtype=DTYPES[dtype])
        return layer, maker.normal(steps, batch, width, dtype=dtype).requires_grad_()

    def prepare() -> tuple[Any, ...]:
        layer, x = make()
        out = layer(x)[0]
        return out, [x, *layer.parameters()], torch.randn_like(out)

    yield Case(op=kind, fields=fields, make=make, run=lambda layer, x: layer(x), max_sets=2)
    grad = lambda out, leaves, g: torch.autograd.grad(out, leaves, g, retain_graph=True)  # noqa: E731
    yield Case(op=f"{kind}_backward", fields=fields, make=prepare, run=grad, max_sets=2)
