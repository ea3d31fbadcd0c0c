"""`phantora export`: a run read back from its Chakra traces gives what the live run would have given."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from phantora.exporters.chakra import write_chakra
from phantora.exporters.perfetto import write_perfetto

from phantora.cluster import load_cluster
from phantora.errors import UserError
from phantora.report.link_use import link_counters
from phantora.view.export import export

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_run import made_up_run  # noqa: E402


@pytest.fixture(scope="module")
def recorded():
    run = made_up_run()
    run.cluster = load_cluster("dgx-h100")
    for info in run.collectives:
        info.algorithm = "ring/LL128"
    return run


@pytest.fixture(scope="module")
def folder(recorded, tmp_path_factory):
    made = tmp_path_factory.mktemp("run")
    write_chakra(recorded, made)
    return made


def test_the_perfetto_trace_is_that_of_the_live_run(recorded, folder, tmp_path):
    live = write_perfetto(recorded, tmp_path / "live.pftrace", counters=link_counters(recorded, range(4)))
    [again] = export(folder, "perfetto", tmp_path / "again.pftrace", None, True)
    assert again.read_bytes() == live.read_bytes()


def test_chrome_and_kineto_by_default_lie_in_the_run(folder):
    [chrome] = export(folder, "chrome", None, None, True)
    assert chrome == folder / "trace.chrome.json.gz"
    with gzip.open(chrome) as file:
        assert json.load(file)["traceEvents"]
    files = export(folder, "kineto", None, [0, 2], True)
    assert files == [folder / "kineto" / "rank_0.json.gz", folder / "kineto" / "rank_2.json.gz"]


def test_names(folder, tmp_path):
    files = export(folder, "kineto", tmp_path / "job.json", None, True)
    assert [path.name for path in files] == ["job0.json", "job1.json", "job2.json", "job3.json"]
    [few] = export(folder, "chrome", tmp_path / "x.json", [1], False)
    assert {event["pid"] for event in json.loads(few.read_text())["traceEvents"]} == {1}


def test_mistakes(folder, tmp_path):
    for kind, out, words in (
        ("chrome", tmp_path, "is a folder"),
        ("kineto", Path(__file__), "is a file"),
        ("perfetto", tmp_path / "x.json", "no JSON"),
    ):
        with pytest.raises(UserError, match=words):
            export(folder, kind, out, None, True)
    with pytest.raises(UserError, match="--out is needed"):
        export(folder / "chakra" / "trace", "chrome", None, None, True)
    with pytest.raises(UserError, match="no rank 7"):
        export(folder, "chrome", tmp_path / "x.json", [7], True)
    with pytest.raises(UserError):
        export(tmp_path / "nothing", "chrome", tmp_path / "x.json", None, True)
