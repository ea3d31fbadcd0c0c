"""What an operator costs on a rested GPU and on one that has run it for seconds: the GPU's power limit lowers its clock.

usage: python power_bench.py --out DIR       (writes DIR/power.json)

burst_us      median time of a launch in the first 8 ms after a pause of 0.4 s
sustained_us  the same after --seconds of nothing else
clock_mhz, power_w  at the end of that (nvidia-smi, which averages the power over some time)
mixed         GEMM and a streaming kernel in turn, by the share of the time that GEMM has alone
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
import torch.nn.functional as F


def smi() -> tuple[float, float]:
    command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-i", "0"]
    clock, power = subprocess.run(command, capture_output=True, text=True).stdout.split(",")
    return float(clock), float(power)


def batch_us(work: Callable[[], object], count: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / count


def measure(name: str, work: Callable[[], object], seconds: float) -> dict[str, object]:
    for _ in range(3):
        work()
    one_us = batch_us(work, 5)
    count = max(4, int(8000 / one_us))
    bursts = []
    for _ in range(5):
        torch.cuda.synchronize()
        time.sleep(0.4)
        bursts.append(batch_us(work, count))
    stop, samples, times = time.monotonic() + seconds, [], []
    while time.monotonic() < stop:
        times.append(batch_us(work, max(8, int(200_000 / one_us))))
        samples.append(smi())
    late = len(times) // 2
    row = {
        "case": name, "burst_us": statistics.median(bursts), "sustained_us": statistics.median(times[late:]),
        "times_us": times, "clock_mhz": statistics.median(s[0] for s in samples[late:]),
        "power_w": statistics.median(s[1] for s in samples[late:]),
    }  # fmt: skip
    print({k: v for k, v in row.items() if k != "times_us"}, row["sustained_us"] / row["burst_us"], flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=2.5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    bf16 = {"device": "cuda", "dtype": torch.bfloat16}
    scale = 0.02

    def matrices(m: int, k: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(m, k, **bf16) * scale, torch.randn(n, k, **bf16) * scale

    rows = []
    for m, k, n in ((8192, 8192, 8192), (4096, 4096, 4096), (4096, 4096, 11008), (8192, 2048, 8192), (8192, 768, 3072)):
        a, b = matrices(m, k, n)
        rows.append(measure(f"mm {m}x{k}x{n}", lambda: a @ b.t(), options.seconds))
    q = torch.randn(2, 32, 4096, 64, **bf16)
    rows.append(measure("attention 2x32x4096x64", lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True), options.seconds))
    x, y = (torch.randn(1 << 27, **bf16) for _ in range(2))
    rows.append(measure("add 2^27", lambda: torch.add(x, y, out=x), options.seconds))
    s = torch.randn(4096, 4096, **bf16)
    rows.append(measure("mul 4096x4096", lambda: s * s, options.seconds))
    a, b = matrices(4096, 4096, 11008)
    big, small = x[: 1 << 25], y[: 1 << 25]

    def mixed(gemms: int, adds: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(gemms):
                a @ b.t()
            for _ in range(adds):
                torch.add(big, small, out=big)

        return work

    for gemms, adds in ((1, 1), (1, 4), (1, 8), (1, 16)):
        rows.append(measure(f"{gemms} mm 4096x4096x11008 + {adds} add 2^25", mixed(gemms, adds), options.seconds))
    (options.out / "power.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
