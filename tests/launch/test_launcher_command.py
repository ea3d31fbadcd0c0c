"""`record-and-simulate -- COMMAND...`: ranks that the user's own launcher starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

DDP = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(512, 512).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
torch.cuda.synchronize()
if sys.argv[1:] == [str(dist.get_rank())]:
    raise ValueError("no more data")
dist.barrier()
dist.destroy_process_group()
"""
SPAWN = """
import os
import torch, torch.distributed as dist, torch.multiprocessing as mp
def main(rank, world_size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
    torch.cuda.synchronize()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(main, (2,), 2)
"""
ALONE = """
import random, numpy, torch
a = torch.ones(2048, 2048, device="cuda")
(a @ a).sum().item()
print("drawn", random.random(), numpy.random.rand(), torch.rand(1).item())
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


def phantora(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(text)
        return str(path)

    return write


def summary(out: Path) -> dict:
    return json.loads((out / "summary.json").read_text())


def test_torchrun_gives_what_our_own_launcher_gives(tmp_path: Path, script) -> None:
    path = script(DDP)
    theirs = phantora(tmp_path / "theirs", "--", *TORCHRUN, path)
    assert theirs.returncode == 0, theirs.stdout + theirs.stderr
    ours = phantora(tmp_path / "ours", "--nproc-per-node", "2", path)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    first, second = summary(tmp_path / "theirs"), summary(tmp_path / "ours")
    assert first["world_size"] == 2
    for figure in ("steps", "collectives"):
        assert first[figure] == second[figure]
    assert first["virtual_ns"] == pytest.approx(second["virtual_ns"], rel=0.02)  # torch is imported on the clock or before
    assert list((tmp_path / "theirs" / "chakra").glob("trace.*.et"))


def test_a_failing_rank_is_named(tmp_path: Path, script) -> None:
    done = phantora(tmp_path / "out", "--", *TORCHRUN, script(DDP), "1")
    assert done.returncode == 1
    assert "rank 1 failed with exit code 1" in done.stderr
    assert "ValueError: no more data" in done.stderr
    assert summary(tmp_path / "out")["ranks"][0]["num_kernels"] > 0  # nothing that was recorded is lost


def test_ranks_that_a_script_spawns_join_with_the_group(tmp_path: Path, script) -> None:
    done = phantora(tmp_path / "out", "--", sys.executable, script(SPAWN))
    assert done.returncode == 0, done.stdout + done.stderr
    found = summary(tmp_path / "out")
    assert found["world_size"] == 2
    assert [c["kind"] for c in found["collectives"]] == ["all_reduce"]


def test_a_single_process_joins_at_its_end_and_draws_the_same_each_time(tmp_path: Path, script) -> None:
    path = script(ALONE)
    runs = [phantora(tmp_path / name, "--", sys.executable, path) for name in ("one", "two")]
    assert [run.returncode for run in runs] == [0, 0]
    assert summary(tmp_path / "one")["ranks"][0]["num_kernels"] > 0
    assert summary(tmp_path / "one")["virtual_ns"] == summary(tmp_path / "two")["virtual_ns"]
    drawn = [next(line for line in run.stdout.splitlines() if line.startswith("drawn")) for run in runs]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--", "no-such-launcher"), 2, "command not found: no-such-launcher"),
        (("--nproc-per-node", "2", "--", sys.executable, "-c", "1"), 2, "--nproc-per-node has no effect"),
        (("--", sys.executable, "-c", "1"), 1, "before any process joined the run"),
        (("--", sys.executable, "-c", "raise SystemExit(7)"), 7, "ended with exit code 7 before any process joined"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    done = phantora(tmp_path / "out", *arguments)
    assert done.returncode == code
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_more_ranks_than_the_cluster_holds(tmp_path: Path, script) -> None:
    done = phantora(tmp_path / "out", "--cluster", "lab-h200", "--", *TORCHRUN, script(DDP))
    assert done.returncode == 2
    assert "lab-h200" in done.stderr
