"""The measured points: shipped, reproduced exactly, and predicted by their neighbours."""

from __future__ import annotations

import gzip
import math
import statistics
import time
from collections import defaultdict
from pathlib import Path

import pytest

from phantora.compute import Pricer, load
from phantora.compute.build_table import H200, call_of, in_step_ns, read_rows, write
from phantora.compute.families import MODELS, describe
from phantora.compute.roof import Roof
from phantora.compute.table import DEFAULT_TABLE, Curve, fit

# Median leave-one-out error per family of curves, as measured when the table was made, rounded up.
LIMITS = {
    "gemm": 0.07,
    "sdpa": 0.07,
    "conv": 0.17,
    "batch_norm": 0.11,
    "stream": 0.03,
    "rows": 0.11,
    "items": 0.06,
    "foreach": 0.05,
    "row_gather": 0.08,
    "index_add": 0.04,
    "scatter_atomic": 0.05,
    "embedding_sorted": 0.15,
}


def test_table_says_where_it_comes_from() -> None:
    table = load()
    assert {"gpu", "driver", "torch", "date", "method"} <= set(table.provenance)
    assert table.gpu.name == "NVIDIA H200" and table.gpu.num_sms == 132
    assert DEFAULT_TABLE.stat().st_size < 64 << 10


def test_table_loads_fast() -> None:
    load()
    start = time.perf_counter()
    load()
    assert time.perf_counter() - start < 0.05


def test_incomplete_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("# gpu: X\n")
    with pytest.raises(ValueError, match="lacks 'peak_flops'"):
        load(path)


def test_measured_points_are_reproduced(reference: Path, h200: Pricer) -> None:
    """Every benchmark line, priced as a call, gives its measured time (0.2 % where two lines time the same call)."""
    exact = total = 0
    for row in read_rows(reference / "ops.jsonl.gz"):
        call = call_of(row)
        if call is None:
            continue
        price = h200.price(call)
        expected = in_step_ns(describe(call)[0].curves[0], row["us"] * 1e3)
        total += 1
        exact += abs(price.duration_ns - expected) <= max(1, 0.002 * expected)
        assert price.source == "measured"
        assert price.duration_ns == pytest.approx(expected, rel=0.05)
    assert total > 1800 and exact / total > 0.97


def test_building_again_gives_the_shipped_table(reference: Path, tmp_path: Path) -> None:
    header = {key: value for key, value in load().provenance.items()}
    write(read_rows(reference / "ops.jsonl.gz"), header, tmp_path / "again.csv.gz")
    assert gzip.decompress((tmp_path / "again.csv.gz").read_bytes()) == gzip.decompress(DEFAULT_TABLE.read_bytes())
    assert set(H200) <= set(header)


def test_leave_one_out_errors_are_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    table = load()
    roof = Roof(table.gpu)
    errors: dict[str, list[float]] = defaultdict(list)
    for name in table.points:
        model, weights = MODELS[name.split("/")[0]]
        curve = table.curve(name, lambda curve_name, at, model=model: model(curve_name, at, roof), weights)
        assert curve is not None
        for i in range(len(curve.logs) if len(curve.logs) > 1 else 0):
            others = Curve({}, curve.logs[:i] + curve.logs[i + 1 :], curve.residuals[:i] + curve.residuals[i + 1 :])
            x = curve.logs[i]
            predicted = (others._linear(x[0]) if len(x) == 1 else others._nearest(x))[0]
            errors[name.split("/")[0]].append(abs(math.expm1(predicted - curve.residuals[i])))
    with capsys.disabled():
        print("\nleave-one-out error: points, median, 90th percentile")
        for family, values in sorted(errors.items()):
            ninth = sorted(values)[int(0.9 * len(values))]
            print(f"  {family:18s} {len(values):5d} {statistics.median(values):7.1%} {ninth:7.1%}")
    for family, values in errors.items():
        assert statistics.median(values) <= LIMITS[family], family


def test_interpolation_is_exact_for_a_power_law() -> None:
    """Residuals of time = 3 x model are constant, so any position between and beyond gives 3 x model."""
    points = [((n,), 3.0 * n, 0.0) for n in (10, 100, 1000)]
    curve = fit(points, lambda at: float(at[0]), (1.0,))
    for n in (10, 50, 300, 5000):
        assert math.exp(curve.residual((n,), (1.0,))[0]) == pytest.approx(3.0)


def test_distance_is_in_doublings() -> None:
    curve = fit([((16, 16), 1.0, 0.0), ((1024, 16), 1.0, 0.0)], lambda at: 1.0, (1.0, 0.5))
    assert curve.residual((16, 64), (1.0, 0.5))[1] == pytest.approx(1.0)
    assert curve.residual((32, 16), (1.0, 0.5))[1] == pytest.approx(1.0)
