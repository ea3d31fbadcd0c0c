"""The standard sweep: every family's cases, in a fixed random order so that a sweep cut short is a fair sample.

Families alternate, so the GPU sees the mixed load of a training step and not the sustained load of one operator.
"""

from __future__ import annotations

import random

from phantora.compute.sweep import attention, dense, images, indexing, lists, pointwise, rows
from phantora.compute.sweep.case import Case, Maker

FAMILIES = {
    "dense": dense,
    "attention": attention,
    "pointwise": pointwise,
    "rows": rows,
    "indexing": indexing,
    "images": images,
    "lists": lists,
}


def standard_cases(maker: Maker, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Case]:
    """All cases of `families`, shuffled by a fixed seed; recurrent layers last, since cuDNN can hang in them."""
    found = [case for name in families for case in FAMILIES[name].cases(maker)]
    random.Random(1).shuffle(found)
    return sorted(found, key=is_recurrent)


def is_recurrent(case: Case) -> bool:
    return case.op.startswith(("lstm", "gru"))
