"""Against published NCCL measurements. network/constants.py says which constants were fitted on the 8-GPU curves of
A100 and H200; everything else here is a CHECK: no constant was fitted on it."""

from __future__ import annotations

import csv
import gzip
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from phantora.cluster import Placement, load_cluster
from phantora.network import CommOperation, exclusive_ns
from phantora.network.nccl_tests import run_sweep
from tiny_clusters import without_nvls

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "reference" / "published"
MEASURED = Path(__file__).parents[2] / "validation" / "data" / "h200x2"
published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="published measurements are not beside the checkout")
measured = pytest.mark.skipif(not MEASURED.is_dir(), reason="the measurements of two H200s are not in this checkout")

MIB = 2**20


def predicted_us(preset: str, num_nodes: int, num_gpus: int, num_bytes: int) -> float:
    (row,) = run_sweep(Placement(load_cluster(preset), num_nodes, num_gpus), "all_reduce", [num_bytes])
    return row.time_us


def rows(name: str) -> Iterator[dict[str, str]]:
    path = PUBLISHED / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:  # type: ignore[union-attr]
        yield from csv.DictReader(file)


def mean(errors: list[float]) -> float:
    return statistics.mean(map(abs, errors))


@published
@pytest.mark.parametrize(("preset", "column"), [("dgx-a100-80g", "a100_80g_GBps"), ("hgx-h200", "h200_GBps")])
def test_eight_gpus_fitted(preset: str, column: str) -> None:
    large, small = [], []
    for row in rows("allreduce_busbw_8gpu.csv"):
        num_bytes = int(row["bytes"])
        measured_us = 2 * 7 / 8 * num_bytes / float(row[column]) / 1000
        (large if num_bytes >= MIB else small).append(predicted_us(preset, 1, 8, num_bytes) / measured_us - 1)
    assert mean(large) <= 0.05 and max(map(abs, large)) <= 0.15
    assert mean(small) <= 0.15


@published
def test_two_nodes_check() -> None:
    errors = [
        predicted_us(row["system"], 2, 8, int(row["bytes"])) / float(row["time_us"]) - 1
        for row in rows("allreduce_2node.csv")
    ]
    assert mean(errors) <= 0.10
    assert max(map(abs, errors)) <= 0.20


@published
@pytest.mark.parametrize(("gpu", "preset"), [("a100", "dgx-a100-80g"), ("h100", "dgx-h100")])
@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_other_profiles_of_one_node_check(gpu: str, preset: str, num_gpus: int) -> None:
    """Vidur's profiles: 4 to 64 MiB inside one node, the median of the measurements within 6 % of each size."""
    profile = [
        (int(row["size"]), float(row["time_stats.all_reduce.median"]) * 1000)
        for row in rows(f"vidur_{gpu}_dgx_all_reduce.csv.gz")
        if int(row["num_workers"]) == int(row["devices_per_node"]) == num_gpus
    ]
    errors = []
    for size in (4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB):
        near = [(b, us) for b, us in profile if abs(b - size) < 0.06 * size]
        num_bytes, time_us = (statistics.median(column) for column in zip(*near))
        errors.append(predicted_us(preset, 1, num_gpus, int(num_bytes)) / time_us - 1)
    assert max(map(abs, errors)) < 0.31  # 4 MiB on two H100s: 45 us there, 32 on the two H200s below
    assert mean(errors) < 0.11


@measured
@pytest.mark.parametrize(
    ("kind", "bound"),
    [("all_reduce", 0.03), ("all_gather", 0.06), ("reduce_scatter", 0.04), ("broadcast", 0.04), ("send_recv", 0.04),
     ("all_to_all", 0.05)],
)  # fmt: skip
def test_two_h200_check(kind: str, bound: float) -> None:
    """1 MiB to 4 GiB on two H200s of one host without NVLS, NCCL 2.28.9."""
    cluster = without_nvls(load_cluster("hgx-h200"))
    errors = []
    for row in json.loads((MEASURED / "collectives.json").read_text()):
        if row["op"] == kind and row["bytes"] >= MIB:
            operation = CommOperation(kind=kind, ranks=(0, 1), bytes=row["bytes"])  # type: ignore[arg-type]
            errors.append(exclusive_ns(cluster, Placement(cluster, 1, 2), operation) / 1000 / row["us"] - 1)
    assert mean(errors) < bound


@measured
def test_forced_algorithms_and_protocols_check() -> None:
    """NCCL_ALGO and NCCL_PROTO forced on the same two GPUs: the model in their place, where NCCL would not choose them
    too."""
    cluster = without_nvls(load_cluster("hgx-h200"))
    errors = []
    for row in json.loads((MEASURED / "forced.json").read_text()):
        forced = {"NCCL_ALGO": row["algorithm"], "NCCL_PROTO": row["protocol"]}
        operation = CommOperation(kind=row["op"], ranks=(0, 1), bytes=row["bytes"])
        errors.append(exclusive_ns(cluster, Placement(cluster, 1, 2), operation, forced) / 1000 / row["us"] - 1)
    assert mean(errors) < 0.09
    assert max(map(abs, errors)) < 0.35
