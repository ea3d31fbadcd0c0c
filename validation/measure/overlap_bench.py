"""How much computing and communicating slow each other down when they run at once on the same GPUs.

usage: python overlap_bench.py --out DIR

A compute loop and a collective loop run on two streams of every rank, first each alone, then together, queued behind a
spinning kernel. Events stand between groups of iterations; a slowdown compares the mean time of the groups that lie
wholly inside the span in which both loops were running with their mean alone. Columns of overlap.json:

    compute, collective, bytes      the two loops; bytes as nccl-tests counts them
    collective_priority             of the collective's stream: 0, as DDP's, or -1 (high), as FSDP2's
    compute_alone_us, collective_alone_us           one iteration, the other loop absent
    compute_together_us, collective_together_us     one iteration while the other loop runs
    compute_slowdown, collective_slowdown           their ratios
    compute_groups, collective_groups               groups that the together-means rest on
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ranks import Job, run_ranks

SPAN_US = 60_000  # each loop is made to last about this long alone
MAX_LAUNCHES = 700  # per loop: more would fill the launch queue behind the spinning kernel
MAX_GROUPS = 60
SPIN_CYCLES = 130_000_000  # about 65 ms: time for the host to launch both loops

Call = Callable[[], object]


def compute_loops() -> dict[str, Call]:
    def gemm(n: int) -> Call:
        a, b, c = (torch.randn(n, n, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        return lambda: torch.mm(a, b, out=c)

    x, y, z = (torch.randn(2**28, dtype=torch.bfloat16, device="cuda") for _ in range(3))
    return {"gemm_bf16_8192": gemm(8192), "gemm_bf16_4096": gemm(4096), "add_bf16_512MiB": lambda: torch.add(x, y, out=z)}


def collective_loops(job: Job) -> dict[tuple[str, int], Call]:
    def all_reduce(num_bytes: int) -> Call:
        x = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device="cuda").uniform_(-1e-3, 1e-3)
        return lambda: dist.all_reduce(x, dist.ReduceOp.AVG)

    num_bytes = 2**27
    whole = torch.randn(num_bytes // 2, dtype=torch.bfloat16, device="cuda")
    part = torch.randn(num_bytes // 2 // job.world_size, dtype=torch.bfloat16, device="cuda")
    loops = {("all_reduce", size): all_reduce(size) for size in (2**20, 2**24, 2**28)}
    loops["all_gather", num_bytes] = lambda: dist.all_gather_into_tensor(whole, part)
    loops["reduce_scatter", num_bytes] = lambda: dist.reduce_scatter_tensor(part, whole)
    return loops


class Loop:
    """A call repeated on its own stream, with an event after every group of iterations."""

    def __init__(self, call: Call, us: float, stream: torch.cuda.Stream) -> None:
        count = int(min(MAX_LAUNCHES, max(8, SPAN_US / us)))
        self.call, self.stream = call, stream
        self.group = -(-count // MAX_GROUPS)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(count // self.group + 1)]

    def launch(self) -> None:
        with torch.cuda.stream(self.stream):
            self.events[0].record()
            for event in self.events[1:]:
                for _ in range(self.group):
                    self.call()
                event.record()

    def times_us(self, origin: torch.cuda.Event) -> list[float]:
        return [origin.elapsed_time(event) * 1e3 for event in self.events]

    def mean_us(self, times: list[float], first: float, last: float) -> tuple[float | None, int]:
        """(time of one iteration, number of groups) over the groups inside [first, last]."""
        inside = [end - begin for begin, end in zip(times, times[1:]) if begin >= first and end <= last]
        return (statistics.mean(inside) / self.group if inside else None), len(inside)


def run(job: Job, loops: list[Loop]) -> list[tuple[float | None, int]]:
    """Launch the loops together; (time of one iteration, groups) of each while all of them ran."""
    torch.cuda.synchronize()
    job.barrier()
    torch.cuda._sleep(SPIN_CYCLES)
    origin = torch.cuda.Event(enable_timing=True)
    origin.record()
    for loop in loops:
        loop.stream.wait_event(origin)
    for loop in loops:
        loop.launch()
    torch.cuda.synchronize()
    times = [loop.times_us(origin) for loop in loops]
    first, last = max(t[0] for t in times), min(t[-1] for t in times)
    return [loop.mean_us(t, first, last) for loop, t in zip(loops, times, strict=True)]


def rough_us(job: Job, call: Call) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        call()
    begin.record()
    for _ in range(5):
        call()
    end.record()
    end.synchronize()
    return job.largest(begin.elapsed_time(end) * 1e3 / 5)


def measure(job: Job) -> list[dict]:
    compute_stream = torch.cuda.Stream()
    collective_streams = {priority: torch.cuda.Stream(priority=priority) for priority in (0, -1)}
    computes = {name: (call, rough_us(job, call)) for name, call in compute_loops().items()}
    collectives = {key: (call, rough_us(job, call)) for key, call in collective_loops(job).items()}
    alone = {}
    for key, (call, us) in list(computes.items()) + list(collectives.items()):
        loop = Loop(call, us, compute_stream)
        run(job, [loop])
        alone[key] = run(job, [loop])[0][0]
    rows = []
    for name, key, priority in itertools.product(computes, collectives, collective_streams):
        loops = [Loop(*computes[name], compute_stream), Loop(*collectives[key], collective_streams[priority])]
        (compute_together, compute_groups), (collective_together, collective_groups) = run(job, loops)
        row = {
            "compute": name, "collective": key[0], "bytes": key[1], "collective_priority": priority,
            "compute_alone_us": alone[name], "compute_together_us": compute_together,
            "collective_alone_us": alone[key], "collective_together_us": collective_together,
            "compute_slowdown": compute_together and compute_together / alone[name],
            "collective_slowdown": collective_together and collective_together / alone[key],
            "compute_groups": compute_groups, "collective_groups": collective_groups,
        }
        rows.append({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    ranks = run_ranks(measure)
    rows = [{"rank": rank} | row for rank, result in enumerate(ranks) for row in result]
    (options.out / "overlap.json").write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    for row in ranks[0]:
        print(row, flush=True)


if __name__ == "__main__":
    main()
