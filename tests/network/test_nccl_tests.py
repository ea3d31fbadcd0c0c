"""The command nccl-tests: sizes, columns, comparison, JSON, plot."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from phantora.cli import main
from phantora.cluster import Placement, load_cluster
from phantora.errors import UserError
from phantora.network.nccl_tests import KINDS, mean_iteration_us, parse_size, run_sweep, sweep_sizes


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, ["nccl-tests", *arguments], env={"NCCL_ALGO": "", "NCCL_PROTO": ""})
    assert result.exit_code == code, result.output
    return result.output


def test_sizes() -> None:
    assert [parse_size(text) for text in ("8", "1K", "32M", "8G", "1.5k")] == [8, 1024, 2**25, 2**33, 1536]
    assert sweep_sizes(1, 10, 2) == [1, 2, 4, 8]
    assert sweep_sizes(5, 5, 1) == [5]
    for wrong in ("", "K", "12X", "-1"):
        with pytest.raises(UserError):
            parse_size(wrong)
    with pytest.raises(UserError):
        sweep_sizes(1, 10, 1)


def test_json() -> None:
    found = json.loads(run("--cluster", "dgx-h100", "-b", "1M", "-e", "4M", "--json"))
    assert [row["size"] for row in found["rows"]] == [2**20, 2**21, 2**22]
    for row in found["rows"]:
        assert row["algbw"] == pytest.approx(row["size"] / row["time_us"] / 1000, rel=1e-3)
        assert row["busbw"] == pytest.approx(row["algbw"] * 14 / 8, rel=1e-3)
        assert row["algorithm"] in ("ring", "tree", "nvls") and row["protocol"] in ("LL", "LL128", "Simple")


def test_table_has_the_columns_of_nccl_tests() -> None:
    lines = run("--cluster", "p4d", "-n", "2", "-b", "1K", "-e", "1K", "--collective", "all_gather_perf").splitlines()
    assert lines[1].split()[:6] == ["#", "size", "count", "type", "time", "algbw"]
    assert lines[3].split()[:3] == ["1024", "16", "float"]  # elements of one of 16 ranks


@pytest.mark.parametrize("collective", sorted(KINDS))
def test_every_collective(collective: str) -> None:
    times = [row.time_us for row in run_sweep(Placement(load_cluster("p5"), 2, 8), collective, [2**20, 2**24, 2**28])]
    assert 0 < times[0] < times[1] < times[2]


def test_compare_and_plot(tmp_path: Path) -> None:
    csv, svg = tmp_path / "m.csv", tmp_path / "p.svg"
    csv.write_text("system,gpus,bytes,time_us\np5,16,3145728,150\np5,8,1048576,1\n")
    output = run("--cluster", "p5", "-n", "2", "-b", "1M", "-e", "4M", "--compare", str(csv), "--plot", str(svg))
    (line,) = [line for line in output.splitlines() if "150.00" in line]
    assert line.split()[0] == "3145728" and line.endswith("%")
    assert "1 sizes" in output
    assert len(list(ElementTree.fromstring(svg.read_text()).iter("{http://www.w3.org/2000/svg}circle"))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "has no column bytes"),
        ("bytes,x,y\n1,2,3\n", "say which column with --column (x, y)"),
        ("bytes,x\n1,two\n", ":2: '1', 'two': not numbers"),
        ("gpus,bytes,x\n3,1,2\n", "has no rows for 8 GPUs of dgx-h100"),
    ],
)
def test_a_csv_with_a_mistake(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    assert message in run("--compare", str(path), code=2)


def test_mistakes() -> None:
    assert "did you mean all_reduce" in run("--collective", "all_reduc", code=2)
    assert "has 32 nodes" in run("-n", "33", code=2)
    assert "ends in .svg" in run("-e", "1K", "--plot", "/tmp/x.png", code=2)


def test_launching_bounds_small_messages() -> None:
    assert mean_iteration_us(1.0, 30.0) == pytest.approx(30.0, rel=1e-3)
    assert mean_iteration_us(3000.0, 30.0) == pytest.approx(3000.0, rel=1e-3)
    assert mean_iteration_us(30.0, 30.0) == pytest.approx(30 * 2**0.25)
    placement = Placement(load_cluster("hgx-h200"), 1, 8)
    one, all_eight = (run_sweep(placement, "all_reduce", [1024], gpus_per_process=n)[0].time_us for n in (1, 8))
    assert one < 20 < all_eight


def test_time_does_not_depend_on_what_ran_before() -> None:
    placement = Placement(load_cluster("dgx-h100"), 4, 8)
    sizes = [2**20, 2**25, 2**30]
    together = [row.time_us for row in run_sweep(placement, "all_reduce", sizes)]
    assert together == [run_sweep(placement, "all_reduce", [size])[0].time_us for size in sizes]
