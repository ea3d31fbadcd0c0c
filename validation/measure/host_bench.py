"""What the host pays, and how fast copies run: bare CUDA calls (host_cost.cu), PyTorch operators, copies by size.

usage: python host_bench.py --out DIR

    host.json      {"call", "bytes", "us", "us_min", "us_max", "repeats"}: host time of a call. `torch: ...` rows go through
                   PyTorch on tensors of one element, launches queued; the others are bare, from host_cost.cu
    copies.json    {"copy", "bytes", "us", "gb_s"}: median time of a copy by CUDA events, and bytes over it; copies within a
                   GPU count the bytes once (read and written are twice that). `pageable` copies are timed by the host
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

COPY_SIZES = [2**power for power in range(12, 31, 2)]
Call = Callable[[], object]


def bare_calls() -> list[dict]:
    source = Path(__file__).with_name("host_cost.cu")
    with tempfile.TemporaryDirectory() as folder:
        program = f"{folder}/host_cost"
        subprocess.run(["nvcc", "-O2", "-o", program, source], check=True, timeout=120)
        output = subprocess.run([program], check=True, timeout=120, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines()]


def torch_calls() -> list[dict]:
    x, y = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
    weight = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16)
    parameters = [torch.ones(1, device="cuda") for _ in range(100)]
    graph_x = torch.ones(1, device="cuda", requires_grad=True)
    calls: dict[str, Call] = {
        "torch: add_ (1 kernel)": lambda: x.add_(1.0),
        "torch: add (1 kernel, 1 allocation)": lambda: x + y,
        "torch: empty (no kernel)": lambda: torch.empty(1, device="cuda"),
        "torch: view (no kernel)": lambda: x.view(1),
        "torch: add, gradient recorded": lambda: graph_x + y,
        "torch: mm 8x8 bf16": lambda: torch.mm(weight, weight),
        "torch: _foreach_add_ of 100 (1 kernel)": lambda: torch._foreach_add_(parameters, 1.0),
    }
    rows = [host_time(name, call, 300) for name, call in calls.items()]
    rows.append(host_time("torch: item() of an idle GPU", lambda: x.item(), 50))
    rows.append(host_time("torch: add_ + synchronize", lambda: (x.add_(1.0), torch.cuda.synchronize()), 50))
    return rows


def host_time(name: str, call: Call, calls: int, repeats: int = 21) -> dict:
    us = []
    for repeat in range(repeats + 1):
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        elapsed = time.perf_counter() - begin
        torch.cuda.synchronize()
        if repeat:  # the first warms up
            us.append(elapsed * 1e6 / calls)
    return {"call": name, "bytes": None, "us": round(statistics.median(us), 3), "us_min": round(min(us), 3), "us_max": round(max(us), 3), "repeats": repeats}


def copies() -> list[dict]:
    rows = []
    for size in COPY_SIZES:
        pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True).random_()
        pageable = torch.empty(size, dtype=torch.uint8).random_()
        here = torch.empty(size, dtype=torch.uint8, device="cuda:0").random_()
        there = torch.empty_like(here)
        kinds: dict[str, tuple[Call, bool]] = {
            "H2D pinned": (lambda: here.copy_(pinned, non_blocking=True), True),
            "D2H pinned": (lambda: pinned.copy_(here, non_blocking=True), True),
            "H2D pageable": (lambda: here.copy_(pageable), False),
            "D2H pageable": (lambda: pageable.copy_(here), False),
            "D2D same GPU": (lambda: there.copy_(here), True),
        }
        if torch.cuda.device_count() > 1:
            peer = torch.empty(size, dtype=torch.uint8, device="cuda:1")
            kinds["D2D peer GPU"] = (lambda: peer.copy_(here, non_blocking=True), True)
        for name, (call, on_device) in kinds.items():
            us = device_time_us(call) if on_device else wall_time_us(call)
            rows.append({"copy": name, "bytes": size, "us": round(us, 3), "gb_s": round(size / us / 1e3, 3)})
    return rows


def device_time_us(call: Call, repeats: int = 11) -> float:
    for _ in range(2):
        call()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000)  # about 1 ms: lets the launches queue up
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in pairs)


def wall_time_us(call: Call, repeats: int = 7) -> float:
    us = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        us.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(us)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    def write(name: str, rows: list[dict]) -> None:
        (options.out / name).write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
        print("\n".join(str(row) for row in rows), flush=True)

    calls = torch_calls()
    write("host.json", calls)
    try:
        write("host.json", bare_calls() + calls)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no bare calls: {error}", flush=True)
    write("copies.json", copies())


if __name__ == "__main__":
    main()
