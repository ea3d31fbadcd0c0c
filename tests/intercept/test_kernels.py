"""The kernels of the simulated device, probed in processes of their own (see probes/ and kernel_probe.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.intercept import build

HERE = Path(__file__).parent
PROBES = (
    "shapes", "contents", "policies", "devices", "attention", "modules", "optimizers", "random_numbers", "calls", "various",
    "coverage",
)  # fmt: skip
# Cases of the table read on an H200; the others differ in dtype only.
WORKSPACES = ("mm-f32", "addmm-bf16", "linear3d-f32", "bmm-bf16", "mv-f32", "train-f32", "nobias-bf16", "linalg-f32")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(bool(build.status().problem), reason=build.status().problem or "the device can be built"),
]


def run(name: str, *arguments: str) -> str:
    """Output of a probe; fails with it when the probe fails."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "ignore", str(HERE / "probes" / f"{name}.py"), *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.parametrize("name", PROBES)
def test_probe(name: str) -> None:
    run(name)


@pytest.mark.parametrize("case", WORKSPACES)
def test_workspaces(case: str) -> None:
    run("workspaces", case)


@pytest.mark.parametrize("mode", ["plain", "reentrant", "nonreentrant", "selective"])
def test_plans_change_nothing(mode: str) -> None:
    """The same launches, random offsets and (within the 1 MiB of a second cuBLASLt workspace) memory."""
    planned, unplanned = (run("training", planning, mode) for planning in ("planned", "unplanned"))
    assert planned == unplanned


def test_checkpointing_trades_memory_for_work() -> None:
    launches, memory = {}, {}
    for mode in ("plain", "nonreentrant", "selective"):
        words = run("training", "planned", mode).split()
        launches[mode], memory[mode] = int(words[0]), int(words[2])
    assert launches["plain"] < launches["selective"] < launches["nonreentrant"]
    assert memory["plain"] > memory["selective"] >= memory["nonreentrant"]
