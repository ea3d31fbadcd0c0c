"""[[straggler]] and [jitter] of a cluster file, in whole runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Outcome, Simulate

pytestmark = pytest.mark.torch

# Both ranks spin for 1 ms, add up, and rank 0 says how long a step took and the spinning alone.
SPIN = """
import time, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(1 << 20, device="cuda")
clock_khz = torch.cuda.get_device_properties(0).clock_rate
begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for _ in range(3):
    torch.cuda.synchronize(); dist.barrier()
    start = time.perf_counter_ns()
    begin.record(); torch.cuda._sleep(clock_khz); end.record()
    dist.all_reduce(x)
    torch.cuda.synchronize()
    step_ns = time.perf_counter_ns() - start
print(step_ns, round(begin.elapsed_time(end) * 1e6))
dist.destroy_process_group()
"""

# A chain of launches that the host cannot issue as fast as the GPU runs them.
LAUNCHES = """
import time, torch
x = torch.ones(16, device="cuda")
def step():
    start = time.perf_counter_ns()
    for _ in range(200):
        x.add_(1)
    torch.cuda.synchronize()
    return time.perf_counter_ns() - start
step()
print(step())
"""


def cluster(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "dgx-h100"\n{text}\n')
    return str(path)


def numbers(outcome: Outcome) -> list[int]:
    assert outcome.code == 0, outcome.stderr
    return [int(word) for word in outcome.stdout.splitlines()[0].split()]


def test_a_slow_gpu_lengthens_everybodys_step(simulate: Simulate, tmp_path: Path) -> None:
    step_ns, spin_ns = numbers(simulate(SPIN, 2))
    assert spin_ns == pytest.approx(1_000_000, rel=1e-3)
    slow_step_ns, slow_spin_ns = numbers(simulate(SPIN, 2, cluster=cluster(tmp_path, "[[straggler]]\nrank = 1\nfactor = 1.5")))
    assert slow_spin_ns == spin_ns  # rank 0 itself is as fast as before
    assert slow_step_ns - step_ns == pytest.approx(0.5 * spin_ns, abs=10)


def test_a_slow_host_takes_longer_to_launch(simulate: Simulate, tmp_path: Path) -> None:
    (step_ns,) = numbers(simulate(LAUNCHES))
    (slow_ns,) = numbers(simulate(LAUNCHES, cluster=cluster(tmp_path, '[[straggler]]\nrank = 0\nfactor = 3\nwhat = "host"')))
    assert slow_ns == pytest.approx(3 * step_ns, rel=0.02)


def test_jitter_is_a_function_of_its_seed(simulate: Simulate, tmp_path: Path) -> None:
    times = [
        numbers(simulate(SPIN, 2, cluster=cluster(tmp_path, f"[jitter]\nrelative = 0.1\nseed = {seed}"))) for seed in (1, 1, 2)
    ]
    assert times[0] == times[1] != times[2]
    assert times[0][1] != 1_000_000 and 500_000 < times[0][1] < 1_500_000


def test_a_straggler_that_is_not_there_is_the_users_mistake(simulate: Simulate, tmp_path: Path) -> None:
    outcome = simulate(LAUNCHES, 2, cluster=cluster(tmp_path, "[[straggler]]\nrank = 7\nfactor = 2"))
    assert outcome.code == 2 and "rank 7" in outcome.stderr and "ranks 0 to 1" in outcome.stderr
    assert len(outcome.stderr.strip().splitlines()) == 1
