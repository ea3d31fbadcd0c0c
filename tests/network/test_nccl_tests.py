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
        ("bytes,x\n1,two\n", ":2: x 'two': not a number"),
        ("bytes,x\n1024\n", ":2: has no x"),
        ("bytes,x\n1024,0\n", ":2: x '0': must be greater than 0"),
        ("bytes,x\n1024,-3\n", ":2: x '-3': must be greater than 0"),
        ("bytes,time_us\n1024,nan\n", ":2: time_us 'nan': must be greater than 0 and finite"),
        ("bytes,time_us\n1024,inf\n", ":2: time_us 'inf': must be"),
        ("bytes,x\n-5,1\n", ":2: bytes '-5': must be greater than 0"),
        ("bytes,x\n0,1\n", ":2: bytes '0': must be greater than 0"),
        ("bytes,x\n1.5,1\n", ":2: bytes '1.5': must be whole"),
        ("bytes,x\n1e30,1\n", ":2: bytes '1e30': must be"),
        ("bytes,x\n1," + "9" * 200_000 + "\n", "not a CSV file (field larger"),
        ("gpus,bytes,x\n3,1,2\n", "has no rows for 8 GPUs of dgx-h100"),
    ],
)
def test_a_csv_with_a_mistake(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    assert message in run("--compare", str(path), code=2)


def test_a_csv_of_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_bytes(b"\xff\xfe1,2\n")
    assert "not UTF-8 text" in run("--compare", str(path), code=2)
    path.write_bytes(b"\xef\xbb\xbfbytes,time_us\n1048576,30\n")  # as spreadsheets write it
    assert "1 sizes" in run("-b", "1M", "-e", "1M", "--compare", str(path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-b", "1", "-e", "8G", "-f", "1.0001"], "-f 1.0001: more than 2000 sizes"),
        (["-f", "nan"], "-f nan: must be a number"),
        (["-f", "inf"], "-f inf: must be a number"),
        (["-b", "\u00b2K"], "must be a number of bytes"),
        (["-b", "\u0661K"], "must be a number of bytes"),
        (["-e", "999999T"], "must be at most"),
        (["-g", "99999999"], "-g 99999999: a thread launches for 1 to 8 GPUs"),
        (["-n", "33"], "-n 33: dgx-h100 has 32 nodes"),
        (["-G", "9"], "-G 9: dgx-h100 has 8 GPUs a node"),
        (["--column", "x"], "--column: names a column of the file of --compare"),
        (["--plot", ""], "--plot ''"),
        (["--cluster", ""], "a cluster needs a name"),
        (["--cluster", "a\x1b[31mb"], "characters that cannot be printed"),
    ],
)
def test_options_that_cannot_be(arguments: list[str], message: str) -> None:
    output = run(*arguments, code=2)
    assert message in output and len(output.splitlines()) <= 3


def test_sizes_grow_by_a_byte_at_least_and_hold_whole_elements() -> None:
    assert sweep_sizes(1, 3, 1.01) == [1, 2, 3]
    rows = json.loads(run("-b", "3", "-e", "3", "--json"))["rows"]
    assert [(row["size"], row["count"]) for row in rows] == [(4, 1)]


def test_gpus_are_those_of_the_placement_unless_given(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n[placement]\ngpus = [4, 5, 6, 7]\n')
    assert "on 4 x NVIDIA H100" in run("--cluster", str(path), "-b", "1M", "-e", "1M")
    assert "-G 5: [placement] of mine has 4 GPUs" in run("--cluster", str(path), "-G", "5", code=2)


def test_a_timed_fault_meets_every_size_alike(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx-h100"\n[[fault]]\nlink = "node0.gpu0->nvswitch"\nfactor = 0.1\nuntil_s = 0.01\n')
    sizes = ("-b", "64M", "-f", "2")
    together = json.loads(run("--cluster", str(path), *sizes, "-e", "1G", "--json"))["rows"]
    alone = json.loads(run("--cluster", str(path), "-b", "1G", "-e", "1G", "--json"))["rows"]
    assert together[-1] == alone[0]


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
