"""`phantora calibrate` without a GPU: its errors, the sweep's cases, calls as JSON, replayed calls."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from compute_calls import call, contiguous, mm

from phantora.compute import calibrate_command
from phantora.compute.call_json import from_json, to_json

# torch is imported inside the tests only: at collection it would be too early for the tests that arm this process.
pytestmark = pytest.mark.torch


def test_calibrate_needs_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "phantora.cli", "calibrate", "--out", str(tmp_path / "t.csv.gz")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)  # its own process: no simulated GPU
    assert done.returncode == 2 and "needs a GPU" in done.stderr


def test_calls_survive_json() -> None:
    original = mm(8, 16, 32, allow_tf32=True)
    assert from_json(json.loads(json.dumps(to_json(original)))) == original


def test_the_sweep_covers_the_families_and_can_be_described() -> None:
    """On meta tensors nothing is computed, but every case makes its inputs."""
    from phantora.compute.sweep.case import Maker
    from phantora.compute.sweep.standard import standard_cases

    cases = standard_cases(Maker("meta"))
    assert len(cases) > 4000
    assert {"mm", "sdpa_bwd", "conv2d_wgrad", "group_norm", "sort", "_scaled_mm", "embedding_bag"} <= {
        c.op for _, c in cases
    }
    assert [c.op for _, c in cases] == [c.op for _, c in standard_cases(Maker("meta"))]
    assert {group for group, _ in cases} == {"mixed", "recurrent"}


def test_families_that_may_hang_run_alone_and_last() -> None:
    from phantora.compute.sweep.case import Maker
    from phantora.compute.sweep.groups import groups_of
    from phantora.compute.sweep.standard import standard_cases

    families = ("recurrent", "rows", "factorizations")
    assert list(groups_of(families, 100.0).items()) == [("mixed", 60.0), ("recurrent", 20.0), ("factorizations", 20.0)]
    groups = [group for group, _ in standard_cases(Maker("meta"), families)]
    assert groups == sorted(groups, key=["mixed", "recurrent", "factorizations"].index)


def test_an_unknown_family_lists_what_exists() -> None:
    from phantora.compute.sweep.groups import STANDARD, families_of
    from phantora.errors import UserError

    assert families_of(None) == STANDARD and families_of("rows, dense") == ("rows", "dense")
    with pytest.raises(UserError, match="no family 'row'; there are dense, attention"):
        families_of("row")


def test_observed_calls_are_those_of_the_operator() -> None:
    import torch

    from phantora.compute.sweep.observe import Observer

    with Observer() as observer:
        torch.nn.functional.layer_norm(torch.ones(4, 8), (8,))
    assert [c.name for c in observer.calls if "layer_norm" in c.name] == ["aten::native_layer_norm"]


def test_recorded_calls_run_again() -> None:
    from phantora.compute.sweep.replay import case_of

    weight, index = contiguous((100, 8), "float32"), contiguous((5,), "int64")
    for recorded in (
        mm(8, 16, 32, "float32"),
        call("embedding", contiguous((5, 8), "float32"), weight=weight, indices=index),
    ):
        case = case_of(recorded, device="cpu")
        assert tuple(case.run(*case.make()).shape) == recorded.outputs[0].shape


def test_a_run_without_operators_is_the_users_mistake(tmp_path: Path) -> None:
    from phantora.errors import UserError

    with pytest.raises(UserError, match="holds no operators.jsonl"):
        calibrate_command.recorded_calls(tmp_path)


def test_a_wrong_line_of_operators_is_named(tmp_path: Path) -> None:
    from phantora.errors import UserError

    (tmp_path / "operators.jsonl").write_text(json.dumps(to_json(mm(8, 16, 32))) + "\nnot JSON\n")
    with pytest.raises(UserError, match=r"operators.jsonl:2: not an operator call"):
        calibrate_command.recorded_calls(tmp_path)


def test_what_a_run_writes_is_what_calibrate_reads(tmp_path: Path) -> None:
    """operators.jsonl has every priced call once, with its count, costliest first."""
    from phantora.cluster.loader import load_cluster
    from phantora.report.operators import write_operators
    from phantora.trace.model import RankTrace, Run, SignatureInfo

    cheap, costly = mm(8, 16, 32), mm(512, 512, 512)
    signatures = [
        SignatureInfo(c.name, (), (), ns, 1, "measured", 0, 0, "gemm", call=json.dumps(to_json(c)))
        for c, ns in ((cheap, 3000), (costly, 9000))
    ]
    run = Run(command=[], cluster=load_cluster("lab-h200"), world_size=1, nproc_per_node=1, complete=True, error=None)
    run.signatures = signatures
    run.ranks = [RankTrace(rank=0)]
    run.ranks[0].signature.extend((0, 1, 1))
    path = write_operators(run, tmp_path)
    assert [json.loads(line)["count"] for line in path.read_text().splitlines()] == [2, 1]
    assert calibrate_command.recorded_calls(tmp_path) == [costly, cheap]


def test_tables_that_are_none_are_the_users_mistake(tmp_path: Path) -> None:
    from phantora.compute.pricer import price_table
    from phantora.errors import UserError

    text, wrong = tmp_path / "text.csv.gz", tmp_path / "wrong.csv.gz"
    text.write_text("a table")
    with gzip.open(wrong, "wt") as file:
        file.write("stream/all/add/4,16,minus one,0,1\n")
    with pytest.raises(UserError, match="there is no price table"):
        price_table(str(tmp_path / "none.csv.gz"))
    with pytest.raises(UserError, match="is no price table of phantora calibrate"):
        price_table(str(text))
    with pytest.raises(UserError, match=r"wrong.csv.gz:1: not curve,position"):
        price_table(str(wrong))


def test_kernels_join_their_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    lines = [
        {"provenance": {}},
        {"case": 3, "op": "add", "us": 2.0, "host_us": 9.0},
        {"case": 3, "kernels": [["k", 1.1]]},
    ]
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    assert calibrate_command.merged_rows(path)[0]["kernels"] == [["k", 1.1]]
