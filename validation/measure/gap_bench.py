"""Time between kernels that wait in a queue, and what a step costs beyond its kernels.

usage: python gap_bench.py --out DIR       (writes DIR/gaps.json)

queued_ms    GPU time of forward and backward between two events, all launches waiting behind a long sleep kernel
kernels_ms   sum of the kernels' and copies' own times in a profiled run of the same
gap_us       (queued_ms - kernels_ms) / (number - 1): what lies between two of them
clock_mhz    of the SMs while steps follow each other without pause (nvidia-smi, median), power_w likewise
empty_us     the same for chains of tiny kernels: one kernel repeated, and different ones in turn
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

from models import GPT2, GPT2Config, LLAMA_CONFIGS, Llama, next_token_loss

SLEEP_CYCLES = 1_200_000_000  # 0.6 s: longer than the launches of a step take


def queued_ms(work: Callable[[], object]) -> float:
    """GPU time of `work` alone, its launches made while the GPU sleeps."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end)


def profiled(work: Callable[[], object]) -> tuple[float, int]:
    """(sum of the times of kernels and copies in ms, their number)."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            torch.cuda._sleep(SLEEP_CYCLES)
            work()
            torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA and "spin" not in e.name]
    return sum(e.device_time_total for e in events) / 1e3, len(events)


def busy_clock(work: Callable[[], object], seconds: float) -> dict[str, float]:
    """SM clock and power while `work` repeats."""
    samples = []
    command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-i", "0"]
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        for _ in range(6):
            work()
        samples.append([float(x) for x in subprocess.run(command, capture_output=True, text=True).stdout.split(",")])
    torch.cuda.synchronize()
    return {"clock_mhz": statistics.median(s[0] for s in samples[1:]), "power_w": statistics.median(s[1] for s in samples[1:])}


def model_rows() -> list[dict]:
    device = torch.device("cuda")
    cases = {
        "gpt2-124m-b8-s1024": (GPT2(GPT2Config()), 50257, 8, 1024, True),
        "gpt2-124m-b2-s512": (GPT2(GPT2Config()), 50257, 2, 512, True),
        "llama-1b-b1-s4096": (Llama(LLAMA_CONFIGS["llama-1b"]), 128256, 1, 4096, False),
    }
    rows = []
    for name, (model, vocab, batch, seq, amp) in cases.items():
        model = model.to(device) if amp else model.to(device, torch.bfloat16)
        tokens = torch.randint(0, vocab, (batch, seq), device=device)

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=amp):
                loss = next_token_loss(model(tokens), tokens)
            loss.backward()
            model.zero_grad(set_to_none=True)

        for _ in range(3):
            step()
        gpu_ms = [queued_ms(step) for _ in range(5)]
        kernels_ms, number = profiled(step)
        middle = statistics.median(gpu_ms)
        back_to_back = []
        for _ in range(3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(10):
                step()
            torch.cuda.synchronize()
            back_to_back.append((time.perf_counter() - start) * 100)
        rows.append({
            "case": name, "queued_ms": middle, "all_queued_ms": gpu_ms, "kernels_ms": kernels_ms, "number": number,
            "gap_us": (middle - kernels_ms) / (number - 1) * 1e3, "back_to_back_ms": statistics.median(back_to_back),
            **busy_clock(step, 5.0),
        })  # fmt: skip
        print(rows[-1], flush=True)
        del model, step
        torch.cuda.empty_cache()
    return rows


def chain_rows() -> list[dict]:
    """Chains of tiny kernels: the same one, and several in turn."""
    a = torch.ones(1024, device="cuda")
    b = torch.ones(32, 32, device="cuda")
    chains = {
        "add_": [lambda: a.add_(1)],
        "add_, mul_, exp, sum, copy": [lambda: a.add_(1), lambda: a.mul_(1), lambda: a.exp(), lambda: a.sum(), lambda: a.clone()],
        "mm": [lambda: b @ b],
        "mm, softmax, relu, cumsum": [lambda: b @ b, lambda: b.softmax(1), lambda: b.relu(), lambda: b.cumsum(0)],
    }
    rows = []
    for name, calls in chains.items():

        def chain() -> None:
            for _ in range(400 // len(calls)):
                for call in calls:
                    call()

        chain()
        middle = statistics.median(queued_ms(chain) for _ in range(5))
        kernels_ms, number = profiled(chain)
        rows.append({"case": name, "queued_ms": middle, "kernels_ms": kernels_ms, "number": number,
                     "empty_us": middle / number * 1e3, "gap_us": (middle - kernels_ms) / (number - 1) * 1e3})  # fmt: skip
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = chain_rows() + model_rows()
    (options.out / "gaps.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
