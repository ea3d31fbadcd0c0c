"""The sweeps: every family's cases, in a fixed random order so that a sweep cut short is a fair sample.

Families alternate, so the GPU sees the mixed load of a training step and not the sustained load of one operator. Those
of groups.ALONE come last and run in processes of their own, likeliest cases first: they can hang or take long.
"""

from __future__ import annotations

import random

from phantora.compute.sweep import (
    attention,
    dense,
    factorizations,
    images,
    indexing,
    lists,
    pointwise,
    recurrent,
    rows,
    sampled,
    views,
)
from phantora.compute.sweep.case import Case, Maker
from phantora.compute.sweep.groups import ALONE, STANDARD

_MODULES = {
    "dense": dense,
    "attention": attention,
    "pointwise": pointwise,
    "rows": rows,
    "indexing": indexing,
    "images": images,
    "lists": lists,
    "sampled": sampled,
    "views": views,
    "recurrent": recurrent,
    "factorizations": factorizations,
}


def standard_cases(maker: Maker, families: tuple[str, ...] = STANDARD) -> list[tuple[str, Case]]:
    """(group, case) of `families`: 'mixed' ones shuffled by a fixed seed, then those that run alone, in their order."""
    mixed = [case for name in families if name not in ALONE for case in _MODULES[name].cases(maker)]
    random.Random(1).shuffle(mixed)
    alone = [(name, case) for name in families if name in ALONE for case in _MODULES[name].cases(maker)]
    return [*(("mixed", case) for case in mixed), *alone]
