"""The closed form of a ring whose members start at different times gives what its messages give."""

from __future__ import annotations

import random

import pytest

from phantora.astra.algorithms import Ring
from phantora.astra.config import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER, Algorithm, Dimension, System
from phantora.astra.network import Shape, UnawareNetwork
from phantora.astra.plan import Allocators, Collective, Planner
from phantora.astra.whole import Wholes

KINDS = (ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER)


def _wholes(random_: random.Random, groups: dict[int, tuple[int, ...]]) -> Wholes:
    topologies = ("Ring", "Switch", "FullyConnected")
    dims = tuple(
        Dimension(random_.choice(topologies), size, random_.uniform(0.1, 90), random_.choice([0, 0.7, 500]))
        for size in (4, 3)
    )
    system = System(
        endpoint_delay_ns=random_.randrange(1, 40), active_chunks=random_.randrange(1, 4), splits=random_.randrange(1, 6),
        is_baseline=random_.choice([True, False]), local_mem_bytes_per_ns=random_.choice([0, 3.3, 1600]),
        algorithms={kind: (Algorithm("ring"), Algorithm("ring")) for kind in KINDS},
    )  # fmt: skip
    return Wholes(Planner(system, Shape(dims), groups), UnawareNetwork, False)


@pytest.mark.parametrize("seed", range(150))
def test_as_its_messages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random_ = random.Random(seed)
    group = tuple(random_.sample(range(12), random_.randrange(2, 13)))
    wholes = _wholes(random_, {1: group})
    involved = random_.choice([(True, False), (False, True)])
    number = random_.choice([0, 1]) if len(group) < 12 else 0
    collective = Collective(random_.choice(KINDS), random_.randrange(40, 100_000), number, () if number else involved)
    members = wholes.geometry(collective).members(group[0])
    starts_ns = [random_.choice([0, random_.randrange(1, 10), random_.randrange(1, 30_000)]) for _ in members]
    starts_ns[random_.randrange(len(members))] = 0
    closed = wholes.apart(collective, members, starts_ns, [Allocators(2, 1) for _ in members])
    assert wholes._rings[collective, members[0]] is not None
    monkeypatch.setattr(Wholes, "_ring", lambda *_: None)
    assert wholes.apart(collective, members, starts_ns, [Allocators(2, 1) for _ in members]) == closed


def test_no_message_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    wholes = _wholes(random.Random(0), {})
    collective = Collective(ALL_REDUCE, 1 << 20, 0, (True, False))
    monkeypatch.setattr(Wholes, "_simulate", None)
    monkeypatch.setattr(Ring, "general", None)
    ends = wholes.apart(collective, range(4), [0, 5, 0, 7_000], [Allocators(2, 1) for _ in range(4)])
    assert min(end.ends_ns for end in ends) > 7_000
