"""Faults of the simulated job: the run ends soon, names the rank and the reason, and nothing hangs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

START = """
import os, sys, signal, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    "fault,code,words",
    [
        ("raise ValueError('broken batch')", 1, ["rank 1", "ValueError: broken batch", "in fault"]),
        ("os._exit(5)", 5, ["rank 1", "5", "os._exit"]),
        ("sys.exit(7)", 7, ["rank 1", "7"]),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, ["rank 1", "SIGKILL"]),
        ("torch.empty(1 << 50, device='cuda')", 1, ["rank 1", "OutOfMemoryError", "CUDA out of memory"]),
    ],
)
def test_a_rank_that_ends_badly_ends_the_run(simulate, fault: str, code: int, words: list[str]) -> None:
    script = START + f"""
def fault():
    print("at", time.monotonic(), flush=True)
    {fault}
if rank == 1:
    fault()
dist.all_reduce(x)
torch.cuda.synchronize()
"""
    done = simulate(script, 3)
    assert done.code == code, done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    began = float(re.search(r"at ([\d.]+)", done.log(1)).group(1))
    assert time.monotonic() - began < 5 + 2
    assert done.summary["complete"] is False and done.summary["ranks"][1]["num_kernels"] > 0


def test_all_ranks_killed_at_once(simulate) -> None:
    done = simulate(START + "os.kill(os.getpid(), signal.SIGSEGV)", 2)
    assert done.code == 128 + signal.SIGSEGV and "SIGSEGV" in done.stderr


@pytest.mark.parametrize(
    "first,second,words",
    [
        ("dist.all_reduce(x)", "dist.broadcast(x, 0)", ["all_reduce", "broadcast"]),
        ("dist.all_reduce(x)", "dist.all_reduce(x[:100])", ["number of elements", "1048576", "100"]),
        ("dist.all_reduce(x)", "dist.all_reduce(x.bfloat16())", ["dtype", "float32", "bfloat16"]),
        ("dist.broadcast(x, 0)", "dist.broadcast(x, 1)", ["root"]),
    ],
)
def test_collectives_that_do_not_match(simulate, first: str, second: str, words: list[str]) -> None:
    script = START + f"""
def one():
    {first}
def two():
    {second}
one() if rank == 0 else two()
torch.cuda.synchronize()
"""
    done = simulate(script, 2)
    assert done.code != 0
    for word in ["do not match", "rank 0", "rank 1", "in one", "in two", *words]:
        assert word in done.stderr, done.stderr


def test_unjoined_collective(simulate) -> None:
    script = START + """
def left_alone():
    dist.all_reduce(x)
    torch.cuda.synchronize()
if rank == 0:
    left_alone()
"""
    done = simulate(script, 3)
    assert done.code != 0
    for word in ["joined by ranks [0]", "not by ranks [1, 2]", "in left_alone", "rank 1 has finished"]:
        assert word in done.stderr, done.stderr


def test_ranks_that_wait_for_each_other(simulate) -> None:
    script = START + """
y = torch.ones(1 << 20, device="cuda")
(dist.send if rank == 0 else dist.recv)(x, 1 - rank)
torch.cuda.synchronize()
dist.recv(y, 1 - rank)
torch.cuda.synchronize()
"""
    done = simulate(script, 2)
    assert done.code != 0 and "rank 0" in done.stderr and "rank 1" in done.stderr and "recv from rank" in done.stderr


def test_interrupt_leaves_a_readable_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(START + """
for step in range(10**9):
    dist.all_reduce(x)
    torch.cuda.synchronize()
    if step == 20:
        print("ready", flush=True)
""")
    out = tmp_path / "run"
    command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--nproc-per-node", "2", "--out", str(out), str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "ready"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in stderr
    import json

    summary = json.loads((out / "summary.json").read_text())
    assert summary["complete"] is False and summary["ranks"][0]["num_communications"] > 20
    assert (out / "trace.pftrace").stat().st_size > 0
    left = subprocess.run(["pgrep", "-f", str(script)], capture_output=True, text=True).stdout.split()
    assert [pid for pid in left if int(pid) != os.getpid()] == []


def test_waits_that_the_engine_cannot_see(simulate, tmp_path: Path) -> None:
    """Rank 0 waits on a pipe for rank 1, which is blocked beyond rank 0's clock: found, said, and the run goes on."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = START + f"""
fifo = {str(fifo)!r}
pair = dist.new_group([1, 2])
if rank == 0:
    open(fifo).read()
else:
    dist.all_reduce(x, group=pair)
    time.sleep(1)
    torch.cuda.synchronize()
    if rank == 1:
        open(fifo, "w").write("go")
dist.all_reduce(x)
torch.cuda.synchronize()
"""
    done = simulate(script, 3, timeout=60)
    assert done.code == 0, done.stderr
    assert "rank 0 waits for something outside the simulation" in done.stderr


def test_polling_for_a_file_sees_it_in_virtual_time(simulate, tmp_path: Path) -> None:
    script = START + f"""
file = {str(tmp_path / "file")!r}
if rank == 0:
    began = time.time()
    while not os.path.exists(file):
        time.sleep(0.01)
    print(f"waited {{time.time() - began:.2f}}", flush=True)
else:
    time.sleep(2)
    dist.get_world_size()
    open(file, "w").close()
dist.barrier()
"""
    done = simulate(script, 2, timeout=60)
    assert done.code == 0 and done.stdout.startswith("waited 2.0"), done.stdout + done.stderr


def test_children_of_a_rank(simulate) -> None:
    """Spawned loader workers and processes see the same torch, and are no part of the run."""
    done = simulate(
        """
import multiprocessing, subprocess, sys, torch
from torch.utils.data import DataLoader, TensorDataset
def child(queue):
    queue.put((torch.cuda.is_available(), (torch.ones(3, device="cuda") + 1).shape[0]))
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == (True, 3)
    process.join()
    loader = DataLoader(TensorDataset(torch.arange(8)), batch_size=2, num_workers=2, pin_memory=True, multiprocessing_context="spawn")
    assert [batch[0].is_pinned() for batch in loader] == [True] * 4
    out = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.device_count())"], capture_output=True, text=True).stdout
    assert out.strip() == "8", out
    print("done")
"""
    )
    assert done.code == 0 and "done" in done.stdout, done.stderr
