"""Time a training step: what every train_*.py does around its own `step` function.

    step_ms     host time of one step, synchronized before and after; median, min and max of --steps after --warmup
    peaks       the caching allocator's, from before the model is built
    profile     with --profile DIR one more step runs under torch.profiler (CUDA activities only) and its kernels are
                written to DIR/<case>.rank<r>.json.gz, a timeline that trace_summary.py turns into the sums printed here

Rank 0 prints one JSON line: its own record, and every rank's under `ranks`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that all training scripts share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--case", required=True, help="name of the result")
    parser.add_argument("--steps", type=int, default=8, help="timed steps")
    parser.add_argument("--warmup", type=int, default=3, help="steps before the timed ones")
    parser.add_argument("--batch", type=int, help="sequences a step and data-parallel rank")
    parser.add_argument("--seq", type=int, help="tokens a sequence")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="profile one more step")
    return parser


def batch_of_tokens(vocab: int, batch: int, seq: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels (batch, seq): made on the CPU, copied to the GPU, as a data loader would."""
    tokens = torch.randint(0, vocab, (batch, seq + 1)).pin_memory().to("cuda", non_blocking=True)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def measure(options: argparse.Namespace, step: Callable[[], object], **facts: object) -> None:
    """Warm up, time, perhaps profile; rank 0 prints the record. `facts` go into it as they are."""
    for _ in range(options.warmup):
        step()
    torch.cuda.synchronize()
    times_ms = [_timed_ms(step) for _ in range(options.steps)]
    record = {
        "rank": dist.get_rank(),
        "step_ms": round(statistics.median(times_ms), 3),
        "min_ms": round(min(times_ms), 3),
        "max_ms": round(max(times_ms), 3),
        "all_ms": [round(t, 3) for t in times_ms],
        "max_allocated_mib": round(torch.cuda.max_memory_allocated() / 2**20, 1),
        "max_reserved_mib": round(torch.cuda.max_memory_reserved() / 2**20, 1),
        "allocated_mib": round(torch.cuda.memory_allocated() / 2**20, 1),
    }
    if options.profile:
        record |= _profile(options.case, step, options.profile)
    ranks: list[dict] = [{}] * dist.get_world_size()
    dist.all_gather_object(ranks, record)
    if dist.get_rank() == 0:
        print(json.dumps({"case": options.case, "world_size": dist.get_world_size(), **facts, **record, "ranks": ranks}), flush=True)


def _timed_ms(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def _profile(case: str, step: Callable[[], object], folder: Path) -> dict:
    from torch.profiler import ProfilerActivity, profile

    import trace_summary

    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"{case}.rank{dist.get_rank()}.trace.json"
    for _ in range(2):  # the first starts the profiler's own machinery and is thrown away
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            profiled_ms = _timed_ms(step)
    profiler.export_chrome_trace(str(trace))
    timeline = trace_summary.read_chrome_trace(trace)
    trace.unlink()
    trace_summary.write(timeline, folder / f"{case}.rank{dist.get_rank()}.json.gz")
    return {"profiled_step_ms": round(profiled_ms, 3)} | trace_summary.summarize(timeline)
