"""Against published NCCL measurements. network/constants.py says which constants were fitted on which rows: rows marked
CHECK here were not used for any of them."""

from __future__ import annotations

import csv
import gzip
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from phantora.cluster import Placement, load_cluster
from phantora.network import CommOperation, exclusive_ns

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "reference" / "published"
pytestmark = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="published measurements are not beside the checkout")

MIB = 2**20


def predicted_us(preset: str, num_nodes: int, num_gpus: int, num_bytes: int) -> float:
    placement = Placement(load_cluster(preset), num_nodes, num_gpus)
    operation = CommOperation(kind="all_reduce", ranks=tuple(range(num_nodes * num_gpus)), bytes=num_bytes)
    return exclusive_ns(placement.cluster, placement, operation) / 1000


def rows(name: str) -> Iterator[dict[str, str]]:
    path = PUBLISHED / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:  # type: ignore[union-attr]
        yield from csv.DictReader(file)


def errors_8gpu(preset: str, column: str, low: int, high: int) -> list[float]:
    found = []
    for row in rows("allreduce_busbw_8gpu.csv"):
        num_bytes = int(row["bytes"])
        if low <= num_bytes <= high:
            measured_us = 2 * 7 / 8 * num_bytes / float(row[column]) / 1000
            found.append(predicted_us(preset, 1, 8, num_bytes) / measured_us - 1)
    return found


def test_8_a100_check() -> None:
    """CHECK: 4 MiB to 512 MiB of the A100 column."""
    errors = errors_8gpu("dgx-a100-80g", "a100_80g_GBps", 4 * MIB, 512 * MIB)
    assert max(map(abs, errors)) < 0.17
    assert statistics.mean(map(abs, errors)) < 0.07


def test_8_h200_check() -> None:
    """CHECK: 4 MiB to 128 MiB of the H200 column."""
    errors = errors_8gpu("hgx-h200", "h200_GBps", 4 * MIB, 128 * MIB)
    assert max(map(abs, errors)) < 0.08


def test_8_gpus_large_fitted() -> None:
    """Fitted rows: the bus bandwidth that large messages reach."""
    assert max(map(abs, errors_8gpu("dgx-a100-80g", "a100_80g_GBps", 1024 * MIB, 2**40))) < 0.02
    assert max(map(abs, errors_8gpu("hgx-h200", "h200_GBps", 256 * MIB, 2**40))) < 0.06


def test_one_mebibyte_is_bound_by_latency_check() -> None:
    """CHECK: 1 MiB on 8 GPUs; the published times contain the host's launch rate, which is not the network's."""
    for preset, column in (("dgx-a100-80g", "a100_80g_GBps"), ("hgx-h200", "h200_GBps")):
        (error,) = errors_8gpu(preset, column, MIB, MIB)
        assert -0.35 < error < 0.1


@pytest.mark.parametrize(
    ("system", "num_bytes", "bound"),
    [
        ("p5", 134217728, 0.30),  # CHECK
        ("p5", 8589934592, 0.08),  # CHECK
        ("p5", 1048576, 0.05),  # fitted
        ("p4de", 1048576, 0.05),  # fitted
        ("p4de", 2147483648, 0.05),  # fitted
    ],
)
def test_two_nodes(system: str, num_bytes: int, bound: float) -> None:
    (row,) = (r for r in rows("allreduce_2node.csv") if r["system"] == system and int(r["bytes"]) == num_bytes)
    assert predicted_us(system, 2, 8, num_bytes) == pytest.approx(float(row["time_us"]), rel=bound)


@pytest.mark.parametrize(("gpu", "preset"), [("a100", "dgx-a100-80g"), ("h100", "dgx-h100")])
@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_vidur_profiles_fitted(gpu: str, preset: str, num_gpus: int) -> None:
    """Fitted rows: 4 to 64 MiB inside one node, median of the measurements within 6 % of each size."""
    measured = [
        (int(row["size"]), float(row["time_stats.all_reduce.median"]) * 1000)
        for row in rows(f"vidur_{gpu}_dgx_all_reduce.csv.gz")
        if int(row["num_workers"]) == int(row["devices_per_node"]) == num_gpus
    ]
    errors = []
    for size in (4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 64 * MIB):
        near = [(b, us) for b, us in measured if abs(b - size) < 0.06 * size]
        num_bytes, time_us = (statistics.median(column) for column in zip(*near))
        errors.append(predicted_us(preset, 1, num_gpus, int(num_bytes)) / time_us - 1)
    assert max(map(abs, errors)) < 0.26
    assert statistics.mean(map(abs, errors)) < 0.10
