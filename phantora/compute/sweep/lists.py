"""Cases of fused and foreach optimizers on lists of tensors, and copies between host and device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from phantora.compute.sweep.case import DTYPES, Case, Maker

_GPT2 = (
    [(50257, 768), (1024, 768)]
    + [
        (768,),
        (768,),
        (768, 2304),
        (2304,),
        (768, 768),
        (768,),
        (768,),
        (768,),
        (768, 3072),
        (3072,),
        (3072, 768),
        (768,),
    ]
    * 12
    + [(768,)] * 2
)
_RESNET = (
    [(64, 3, 7, 7), (1000, 2048), (1000,)]
    + [(64,)] * 40
    + [(256,)] * 40
    + [(512,)] * 26
    + [(64, 64, 3, 3)] * 3
    + [(128, 128, 3, 3)] * 4
    + [(256, 256, 3, 3)] * 6
    + [(512, 512, 3, 3)] * 3
    + [(256, 1024, 1, 1)] * 11
    + [(512, 2048, 1, 1)] * 6
    + [(128, 512, 1, 1)] * 7
)
_BLOCK = [
    (2048, 2048),
    (512, 2048),
    (512, 2048),
    (2048, 2048),
    (8192, 2048),
    (8192, 2048),
    (2048, 8192),
    (2048,),
    (2048,),
]
LISTS = {
    "gpt2": _GPT2,
    "resnet": _RESNET,
    "llama_blocks": _BLOCK * 8,
    "tiny": [(64,)] * 500,
    "tens": [(10, 10)] * 10,
    "one": [(8192, 4096)],
    "vectors": [(4096,)] * 65,
    "bert_half": [(1024, 1024)] * 48 + [(4096, 1024)] * 24 + [(1024,)] * 80,
}
_MANY = {"tiny", "gpt2", "resnet", "bert_half"}

_FOREACH: dict[str, Callable[..., Any]] = {
    "_foreach_add_": lambda p, g, m, v: torch._foreach_add_(p, g),
    "_foreach_mul_": lambda p, g, m, v: torch._foreach_mul_(p, 0.9),
    "_foreach_mul_list": lambda p, g, m, v: torch._foreach_mul_(p, g),
    "_foreach_lerp_": lambda p, g, m, v: torch._foreach_lerp_(m, g, 0.1),
    "_foreach_addcmul_": lambda p, g, m, v: torch._foreach_addcmul_(v, g, g, 0.1),
    "_foreach_addcdiv_": lambda p, g, m, v: torch._foreach_addcdiv_(p, m, v, 0.1),
    "_foreach_sqrt": lambda p, g, m, v: torch._foreach_sqrt(v),
    "_foreach_norm": lambda p, g, m, v: torch._foreach_norm(g),
    "_foreach_add_alpha": lambda p, g, m, v: torch._foreach_add_(p, g, alpha=-0.1),
    "_foreach_div": lambda p, g, m, v: torch._foreach_div_(v, 2.0),
    "_foreach_zero_": lambda p, g, m, v: torch._foreach_zero_(g),
    "_foreach_copy_": lambda p, g, m, v: torch._foreach_copy_(p, g),
    "_foreach_add": lambda p, g, m, v: torch._foreach_add(p, g),
    "_foreach_neg": lambda p, g, m, v: torch._foreach_neg(g),
    "_foreach_mul_out": lambda p, g, m, v: torch._foreach_mul(g, 0.5),
    "_foreach_clamp_": lambda p, g, m, v: torch._foreach_clamp_min_(v, 0.0),
}
_RATES = {"lr": 1e-3, "weight_decay": 0.1, "maximize": False}
_ADAM = {**_RATES, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "amsgrad": False}
_SGD = {**_RATES, "dampening": 0.0, "nesterov": False}


def cases(maker: Maker) -> Iterator[Case]:
    for name, shapes in LISTS.items():
        for dtype in ("fp32", "bf16"):
            yield from list_operators(maker, name, shapes, dtype)
    yield from _mixed(maker)
    yield from _transfers(maker)


def _fields(name: str, shapes: list[tuple[int, ...]], dtype: str) -> dict[str, Any]:
    return {"list": name, "tensors": len(shapes), "numel": sum(map(math.prod, shapes)), "dtype": dtype}


def list_operators(maker: Maker, name: str, shapes: list[tuple[int, ...]], dtype: str) -> Iterator[Case]:
    fields, sets = _fields(name, shapes, dtype), 1 if name in _MANY else 4

    def make() -> tuple[Any, ...]:
        p, g, m, v = ([maker.normal(*s, dtype=dtype) for s in shapes] for _ in range(4))
        torch._foreach_abs_(v)
        return p, g, m, v

    def make_fused() -> tuple[Any, ...]:
        return *make(), [torch.ones((), device=maker.device) for _ in shapes]

    for op, run in _FOREACH.items():
        yield Case(op=op, fields=fields, make=make, run=run, max_sets=sets)
    fused: dict[str, Callable[..., Any]] = {
        "_fused_adamw_": lambda p, g, m, v, n: torch._fused_adamw_(p, g, m, v, [], n, **_ADAM),
        "_fused_adam_": lambda p, g, m, v, n: torch._fused_adam_(p, g, m, v, [], n, **_ADAM),
        "_fused_sgd_": lambda p, g, m, v, n: torch._fused_sgd_(p, g, [], momentum=0.0, is_first_step=False, **_SGD),
        "_fused_sgd_momentum": lambda p, g, m, v, n: torch._fused_sgd_(
            p, g, m, momentum=0.9, is_first_step=False, **_SGD
        ),
        "_fused_adagrad_": lambda p, g, m, v, n: torch._fused_adagrad_(
            p, g, v, n, lr=1e-3, lr_decay=0.0, weight_decay=0.0, eps=1e-8, maximize=False
        ),
    }
    for op, run in fused.items():
        yield Case(op=op, fields=fields, make=make_fused, run=run, max_sets=sets)


def _mixed(maker: Maker) -> Iterator[Case]:
    """Gradient scaling, and casts of whole parameter lists as FSDP makes them."""
    for name in ("resnet", "llama_blocks"):
        shapes = LISTS[name]

        def make(shapes: list[tuple[int, ...]] = shapes) -> tuple[Any, ...]:
            narrow, wide = ([maker.normal(*s, dtype=dtype) for s in shapes] for dtype in ("bf16", "fp32"))
            return narrow, wide, torch.zeros((), device=maker.device), torch.ones((), device=maker.device)

        run: dict[str, Callable[..., Any]] = {
            "_foreach_copy_cast": lambda n, w, a, b: torch._foreach_copy_(n, w),
            "_amp_foreach_non_finite_check_and_unscale_": lambda n, w, a, b: (
                torch._amp_foreach_non_finite_check_and_unscale_(w, a, b)
            ),
            "_foreach_mul_tensor": lambda n, w, a, b: torch._foreach_mul_(w, b),
        }
        for op, launch in run.items():
            yield Case(op=op, fields=_fields(name, shapes, "fp32"), make=make, run=launch, max_sets=1)


def _transfers(maker: Maker) -> Iterator[Case]:
    for size in (256, 16 << 10, 64 << 10, 128 << 10, 4 << 20, 64 << 20, 512 << 20):
        for pinned in (True, False):
            fields = {"bytes": size, "pinned": pinned}

            def make(size: int = size, pinned: bool = pinned) -> tuple[Any, ...]:
                host = torch.ones(size, dtype=DTYPES["uint8"], pin_memory=pinned)
                return host, torch.empty(size, dtype=DTYPES["uint8"], device=maker.device)

            to_device: Callable[[Tensor, Tensor], Any] = lambda h, d: d.copy_(h, non_blocking=True)  # noqa: E731
            yield Case(op="memcpy_h2d", fields=fields, make=make, run=to_device, max_sets=2)
            yield Case(
                op="memcpy_d2h", fields=fields, make=make, run=lambda h, d: h.copy_(d, non_blocking=True), max_sets=2
            )
