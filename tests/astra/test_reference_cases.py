"""Every reference case, on every backend it was run on: the finish time of every NPU, to the nanosecond, in every way
of simulating.
"""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from phantora.astra.simulate import EVERY_MESSAGE, WAYS, Inputs, load, simulate

REFERENCE = Path(__file__).resolve().parents[2].parent / "shared" / "reference" / "astra_sim"
pytestmark = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no reference runs at {REFERENCE}")


def _rows() -> list[dict[str, str]]:
    if not REFERENCE.is_dir():
        return []
    with (REFERENCE / "results.csv").open() as file:
        return list(csv.DictReader(file))


def _names() -> list[str]:
    return sorted({row["case"] for row in _rows()})


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("astra_sim")
    with tarfile.open(REFERENCE / "inputs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def _inputs(folder: Path, is_aware: bool) -> Inputs:
    options: dict[str, Any] = {}
    for word in json.loads((folder / "meta.json").read_text())["extra"]:
        name, _, value = word.partition("=")
        if name == "--num-queues-per-dim":
            options["num_queues_per_dim"] = int(value)
        else:
            assert (name, value) == ("--rendezvous-protocol", "true")
            options["rendezvous"] = True
    groups = folder / "comm_group.json"
    return Inputs(
        workload=folder / "workload", system=folder / "system.json", network=folder / "network.yml",
        memory=folder / "memory.json", groups=groups if groups.is_file() else None, is_aware=is_aware, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", _names())
def test_finish_times(cases: Path, name: str) -> None:
    results = sorted((cases / "finish").glob(f"{name}.*.json"))
    assert results
    for path in results:
        finished = json.loads(path.read_text())
        expected = [finished[str(rank)][0] for rank in range(len(finished))]
        job = load(_inputs(cases / "inputs" / name, path.name.endswith(".aware.json")))
        for ways in (WAYS, WAYS[1:], [EVERY_MESSAGE]):
            result = simulate(job, ways)
            assert result.finish_ns == expected, (path.name, result.way)


def test_last_finish_is_that_of_the_table(cases: Path) -> None:
    for row in _rows():
        kind = row["backend"].removeprefix("congestion_")
        finished = json.loads((cases / "finish" / f"{row['case']}.{kind}.json").read_text())
        assert max(times[0] for times in finished.values()) == int(row["simulated_ns"])
