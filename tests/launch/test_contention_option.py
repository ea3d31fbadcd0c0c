"""`--contention` in whole runs: what the script itself measures."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Simulate

from phantora.network.contention import ContentionModel

SCRIPTS = Path(__file__).parents[1] / "scripts"

# A kernel of 5 ms beside a large all-reduce that begins while it runs.
BESIDE = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(1 << 27, device="cuda")
clock_khz = torch.cuda.get_device_properties(0).clock_rate
kernel = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
collective = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
side = torch.cuda.Stream()
for _ in range(2):
    dist.barrier(); torch.cuda.synchronize()
    kernel[0].record(); torch.cuda._sleep(5 * clock_khz); kernel[1].record()
    with torch.cuda.stream(side):
        collective[0].record(); dist.all_reduce(x, async_op=True).wait(); collective[1].record()
    torch.cuda.synchronize()
if dist.get_rank() == 0:
    print(*(round(a.elapsed_time(b) * 1e6) for a, b in (kernel, collective)))
dist.destroy_process_group()
"""


@pytest.mark.torch
def test_kernel_and_collective_slow_each_other_down(simulate: Simulate) -> None:
    times = {}
    for options in (("--contention", "off"), (), ("--contention", "measured"), ("--contention", "1.5,1")):
        outcome = simulate(BESIDE, 2, options=options, cluster="hgx-h200")
        assert outcome.code == 0, outcome.stderr
        times[options] = [int(word) for word in outcome.stdout.splitlines()[0].split()]
        notes = [note for note in outcome.summary["notes"] if note.startswith("contention")]
        assert len(notes) == (options[-1:] != ("off",))
    kernel_ns, collective_ns = times["--contention", "off"]
    assert times[()] == times["--contention", "measured"]
    assert kernel_ns == pytest.approx(5_000_000, rel=1e-3) and 1_000_000 < collective_ns < 2_500_000
    model = ContentionModel()
    for options, compute, collective in (((), model.compute_factor, model.collective_factor), (("--contention", "1.5,1"), 1.5, 1.0)):
        beside_ns = collective * collective_ns
        # the launch, which is part of what the events measure, is not slowed: some 2 %
        assert times[options][1] == pytest.approx(beside_ns, rel=0.03)
        assert times[options][0] == pytest.approx(kernel_ns + beside_ns * (1 - 1 / compute), rel=0.01)


@pytest.mark.parametrize(
    "value,words", [("1,x", "two numbers"), ("0.5,2", "compute_factor must be at least 1"), ("1,0", "collective_factor"), ("nan,nan", "compute_factor must be at least 1, not nan"), ("1,inf", "below"), ("2", "two numbers"), ("1;5", "two numbers")]
)
def test_factors_that_cannot_be(simulate: Simulate, value: str, words: str) -> None:
    outcome = simulate("pass", options=(f"--contention={value}",))
    assert outcome.code == 2 and words in outcome.stderr and len(outcome.stderr.strip().splitlines()) == 1, outcome.stderr


@pytest.mark.torch
def test_the_option_may_stand_alone_before_the_script(simulate: Simulate) -> None:
    outcome = simulate("import sys; print(sys.argv[1:])", args=("--contention", "3,4"), options=("--contention",))
    assert outcome.code == 0 and "['--contention', '3,4']" in outcome.stdout
    assert any("kernels x 1.18" in note for note in outcome.summary["notes"])
