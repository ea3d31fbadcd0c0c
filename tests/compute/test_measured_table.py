"""The measured points: shipped, reproduced exactly, and predicted by their neighbours."""

from __future__ import annotations

import gzip
import math
import statistics
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from phantora.cluster.loader import load_cluster
from phantora.compute import Pricer, load
from phantora.compute.build_table import H200, is_held_out, read_rows, table_of, timed_call, write
from phantora.compute.table import DEFAULT_TABLE, Kriging, MeasuredGpu, Table, measured_gpu, prefixes

DATA = Path(__file__).parents[2] / "validation" / "data" / "h200"
SWEEPS = tuple(DATA / f"{name}.jsonl.gz" for name in ("operators", "sampled", "views"))

# Median error, over 20 us, of rows held out of the table, when it was made, rounded up.
LIMITS = {
    "gemm": 0.11,
    "attention": 0.09,
    "convolution": 0.15,
    "normalization": 0.09,
    "softmax": 0.07,
    "elementwise": 0.06,
    "reduction": 0.11,
    "foreach": 0.06,
    "optimizer": 0.08,
    "indexing": 0.08,
    "embedding": 0.08,
    "spatial": 0.11,
    "sort": 0.20,
    "copy": 0.12,
}


def test_table_says_where_it_comes_from() -> None:
    table = load()
    assert {"gpu", "driver", "torch", "date", "method"} <= set(table.provenance)
    assert table.gpu.name == "NVIDIA H200" and table.gpu.num_sms == 132
    assert DEFAULT_TABLE.stat().st_size < 160 << 10


def test_incomplete_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("# gpu: X\n")
    with pytest.raises(ValueError, match="lacks 'peak_flops'"):
        load(path)


def test_building_again_gives_the_shipped_table(reference: Path, tmp_path: Path) -> None:
    rows = [row for path in (reference / "ops.jsonl.gz", *SWEEPS) for row in read_rows(path)]
    header = load().provenance
    write(table_of(rows, header, measured_gpu(header, DEFAULT_TABLE)), tmp_path / "again.csv.gz")
    assert gzip.decompress((tmp_path / "again.csv.gz").read_bytes()) == gzip.decompress(DEFAULT_TABLE.read_bytes())
    assert set(H200) <= set(header)


def test_held_out_rows_are_predicted(reference: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A third of the sweep is priced by a table made of the rest (rates of families were fitted on all)."""
    sweep = [row for path in SWEEPS for row in read_rows(path)]
    kept = read_rows(reference / "ops.jsonl.gz") + [row for row in sweep if not is_held_out(row)]
    cluster = load_cluster("lab-h200")
    pricer = Pricer(cluster.gpu, cluster.host, table_of(kept, H200, measured_gpu(H200, DEFAULT_TABLE)))
    errors: dict[str, list[float]] = defaultdict(list)
    for row in filter(is_held_out, sweep):
        timed = timed_call(row)
        if timed is not None and timed[1] > 20_000:
            errors[pricer.price(timed[0]).family].append(abs(pricer.repeated_ns(timed[0]) / timed[1] - 1))
    with capsys.disabled():
        print("\nheld-out rows over 20 us: points, median, 90th percentile of the error")
        for family, values in sorted(errors.items()):
            print(
                f"  {family:16s} {len(values):5d} {statistics.median(values):7.1%} {sorted(values)[int(0.9 * len(values))]:7.1%}"
            )
    for family, limit in LIMITS.items():
        assert statistics.median(errors[family]) <= limit, family


GPU = MeasuredGpu("X", "9.0", 132, 4.8e12, 50 << 20, {"float32": 1e12})


def power_law(at: tuple[int, ...]) -> float:
    return float(math.prod(at))


def test_interpolation_is_exact_for_a_constant_residual() -> None:
    """time = 3 x model everywhere: so it is between the points too."""
    points = [((n,), 3.0 * n, 0.0, 0) for n in (16, 64, 256, 1024)]
    table = Table(GPU, {}, {"m/a/b": points})
    for n in (32, 100, 500):
        residual, _ = table.residual(("m/a/b",), (n,), lambda _, at: power_law(at), Kriging((1.0,)))
        assert math.exp(residual) == pytest.approx(3.0, rel=0.05)


def test_far_from_all_points_the_model_stands_alone() -> None:
    table = Table(GPU, {}, {"m/a/b": [((16,), 48.0, 0.0, 0)]})
    residual, distance = table.residual(("m/a/b",), (1 << 40,), lambda _, at: power_law(at), Kriging((1.0,)))
    assert abs(residual) < 1e-3 and distance > 30


def test_an_operator_without_points_takes_the_correction_of_its_relatives() -> None:
    points = {f"m/a/{op}": [((n,), 2.0 * n, 0.0, 0) for n in (16, 64, 256)] for op in ("b", "c", "d")}
    residual, _ = Table(GPU, {}, points).residual(("m/a/new",), (64,), lambda _, at: power_law(at), Kriging((1.0,)))
    assert math.exp(residual) == pytest.approx(2.0, rel=0.1)


def test_kernels_are_those_of_the_nearest_counted_point() -> None:
    table = Table(GPU, {}, {"m/a/b": [((16,), 1.0, 0.0, 2), ((1024,), 1.0, 0.0, 5), ((20,), 1.0, 0.0, 0)]})
    assert table.num_kernels(("m/a/b",), (20,), Kriging((1.0,))) == 2
    assert table.num_kernels(("m/a/b",), (700,), Kriging((1.0,))) == 5
    assert table.num_kernels(("m/x/y",), (700,), Kriging((1.0,))) == 0


def test_prefixes_go_from_the_general_to_the_special() -> None:
    assert prefixes("a/b/c") == ["a/b", "a/b/c"]
    assert np.isfinite(load().points["stream/all/add/4"][0][1])
