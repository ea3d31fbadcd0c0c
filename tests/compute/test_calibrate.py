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
        c.op for c in cases
    }
    assert [c.op for c in cases] == [c.op for c in standard_cases(Maker("meta"))]


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
