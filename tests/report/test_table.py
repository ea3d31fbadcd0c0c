"""The text at the end of a run: nothing is wider than the terminal, and everything that matters is there."""

import io
from pathlib import Path

import pytest
from made_up_run import made_up_run
from rich.console import Console

from phantora.report.table import print_report
from phantora.report.units import bytes_text, rate_text, time_text


def printed(run, width=100, files=None):
    out = io.StringIO()
    print_report(run, files or {}, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("world_size", [1, 4, 64])
def test_fits(width, world_size):
    text = printed(made_up_run(1, 1, world_size), width)
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    assert "Where the time went" in text and "reduce_scatter" in text and "measured" in text


def test_many_ranks_are_summarised():
    text = printed(made_up_run(1, 1, 16))
    assert "2 (slowest)" in text and "(median)" in text and "(fastest)" in text
    assert len([line for line in text.splitlines() if "▒" in line and "%" in line]) == 3


def test_failures_and_stand_ins_are_said():
    run = made_up_run(1, 1)
    run.complete, run.error, run.ranks[3].exit_code = False, "rank 3 died [signal 9]", 137
    text = printed(run, files={"perfetto": Path("out/trace.pftrace")})
    assert "stopped early: rank 3 died [signal 9]" in text
    assert "failed ranks: 3 (exit code 137)" in text
    assert "6 reads of values" in text and "train.py:17" in text
    assert "perfetto  out/trace.pftrace  phantora view out\n" in text


def test_each_file_has_a_description():
    files = {"perfetto": Path("my run/trace.pftrace"), "operators": Path("my run/operators.jsonl"), "chakra": Path("my run/chakra")}
    lines = printed(made_up_run(1, 1), files=files).splitlines()
    assert any(line.startswith("perfetto") and line.rstrip().endswith("phantora view 'my run'") for line in lines)
    assert any(line.startswith("operators") and "phantora calibrate" in line for line in lines)


@pytest.mark.parametrize("ns,text", [(0, "0 ns"), (812, "812 ns"), (22_286_700, "22.3 ms"), (1_520_000_000, "1.52 s"),
                                     (125_000_000_000, "2 min 05 s"), (11_520_000_000_000, "3 h 12 min")])  # fmt: skip
def test_times(ns, text):
    assert time_text(ns) == text


def test_sizes_and_rates():
    assert [bytes_text(n) for n in (4, 2**25, 3 * 2**29)] == ["4 B", "32.0 MiB", "1.50 GiB"]
    assert rate_text(371.2e9) == "371 GB/s"
