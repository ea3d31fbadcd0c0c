"""Memory that a collective's stream uses (record_stream) is used again in time: what is reserved stays bounded."""

from __future__ import annotations

import pytest
from conftest import Simulate

# Gather a layer's weights on a side stream, use them on the default stream, drop them: FSDP by hand. Nothing waits for
# the device but the end of a step (`often`), or nothing at all.
GATHER = """
import sys, torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
steps, layers, often = int(sys.argv[1]), 8, sys.argv[2] == "often"
side = torch.cuda.Stream()
shards = [torch.ones(1 << 22, device="cuda") for _ in range(layers)]
x = torch.ones(128, 2048, device="cuda")
for step in range(steps):
    for shard in shards:
        with torch.cuda.stream(side):
            full = torch.empty(2 << 22, device="cuda")
            work = dist.all_gather_into_tensor(full, shard, async_op=True)
            work.wait()
        torch.cuda.current_stream().wait_stream(side)
        full.record_stream(torch.cuda.current_stream())
        y = x @ full[: 2048 * 2048].view(2048, 2048)
        del full
    if often:
        torch.cuda.synchronize()
torch.cuda.synchronize()
print("reserved", torch.cuda.max_memory_reserved() >> 20)
dist.destroy_process_group()
"""
SHARDS_MIB, OTHER_MIB, BUFFER_MIB = 8 * 16, 32 + 64, 32


def reserved_mib(simulate: Simulate, steps: int, often: str) -> int:
    outcome = simulate(
        GATHER, 2, args=(str(steps), often), options=("--no-chakra", "--no-perfetto"), cluster="hgx-h200"
    )
    assert outcome.code == 0, outcome.stderr
    return int(outcome.log(0).split("reserved")[1].split()[0])


@pytest.mark.torch
@pytest.mark.parametrize("often", ["often", "never"])
def test_reserved_memory_stays_bounded(simulate: Simulate, often: str) -> None:
    few, many = (reserved_mib(simulate, steps, often) for steps in (5, 30))
    assert many <= SHARDS_MIB + OTHER_MIB + 6 * BUFFER_MIB
    if often == "often":
        assert many == few
