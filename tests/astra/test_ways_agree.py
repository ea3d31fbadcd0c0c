"""The fast simulations give what the simulation of every message gives, on random small systems and workloads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from random_workloads import random_workload

from phantora.astra.simulate import COHORT, EVERY_MESSAGE, WAYS, WHOLES, Job, simulate
from phantora.errors import UserError

_SEEDS = 25
_seen: Counter[str] = Counter()


def _outcome(job: Job, ways: list[str]) -> tuple[object, str]:
    try:
        result = simulate(job, ways)
        return result.finish_ns, result.way
    except UserError as error:
        assert "deadlock" in str(error)
        return "deadlock", "deadlock"


@pytest.mark.parametrize("block", range(12))
def test_random_workloads(tmp_path: Path, block: int) -> None:
    for seed in range(block * _SEEDS, (block + 1) * _SEEDS):
        workload, options = random_workload(seed)
        job = workload.job(tmp_path / str(seed), **options)
        expected, way = _outcome(job, [EVERY_MESSAGE])
        for ways in (WAYS[1:], WAYS):
            found, way = _outcome(job, list(ways))
            assert found == expected, f"seed {seed}: {way}"
            _seen[way] += 1


def test_the_workloads_cover_all_ways() -> None:
    """Runs after the others: each way was taken often enough to mean something."""
    if sum(_seen.values()) < 12 * _SEEDS:
        pytest.skip("only a part of the random workloads ran")
    assert min(_seen[way] for way in (COHORT, WHOLES, EVERY_MESSAGE)) >= 30, _seen
