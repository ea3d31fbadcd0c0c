"""The kernels of the simulated device, probed in processes of their own (see probes/ and kernel_probe.py)."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.intercept import build

HERE = Path(__file__).parent
PROBES = (
    "shapes", "contents", "policies", "devices", "attention", "modules", "optimizers", "random_numbers", "calls",
    "various", "coverage",
)  # fmt: skip
# Cases of the table read on an H200; the others differ in dtype only.
WORKSPACES = ("mm-f32", "addmm-bf16", "train-f32", "nobias-bf16", "linalg-f32")

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


@functools.cache
def train(planning: str, mode: str) -> tuple[int, str, int, int]:
    """(number of launches, digest of them, peak memory in bytes, random offset) of a training run."""
    num_launches, digest, peak_bytes, offset = run("training", planning, mode).split()[:4]
    return int(num_launches), digest, int(peak_bytes), int(offset)


@pytest.mark.parametrize("mode", ["plain", "reentrant", "nonreentrant", "selective"])
def test_plans_change_nothing(mode: str) -> None:
    """The same launches, random offsets and memory, but for the 1 MiB of a second cuBLASLt workspace
    (workspaces.py)."""
    *planned, planned_bytes, planned_offset = train("planned", mode)
    *unplanned, unplanned_bytes, unplanned_offset = train("unplanned", mode)
    assert planned == unplanned
    assert planned_offset == unplanned_offset
    assert unplanned_bytes - planned_bytes in (0, 1 << 20)


def test_checkpointing_trades_memory_for_work() -> None:
    plain, full, selective = (train("planned", mode) for mode in ("plain", "nonreentrant", "selective"))
    assert plain[0] < selective[0] < full[0]
    assert plain[2] > selective[2] >= full[2]
