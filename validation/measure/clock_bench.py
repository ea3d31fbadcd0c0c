"""Clock and power of a GPU that runs one kind of kernel, or a mix, for seconds: what the power limit does to each.

usage: python clock_bench.py --out DIR       (writes DIR/clocks.json)

A case runs without pause for --seconds after a rest. Columns of a case:

us           median time of one round in the last half
rest_us      the same in the first 6 ms after the rest
series_us    (ms since the start, us of a round) while it settles
clock_mhz, power_w   medians of the last half (nvidia-smi's clocks.sm and power.draw.instant, sampled each 20 ms)
bytes, flops of a round, as its shapes say
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

FIELDS = "timestamp,clocks.sm,power.draw.instant,temperature.gpu"
BF16 = {"device": "cuda", "dtype": torch.bfloat16}


class Sampler:
    """nvidia-smi in the background: (seconds of the day, MHz, W, degrees)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        command = ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits", "-lms", "20", "-i", "0"]
        self._file = path.open("w")
        self._process = subprocess.Popen(command, stdout=self._file)

    def since(self, begin: float) -> list[tuple[float, float, float, float]]:
        self._file.flush()
        found = []
        for line in self._path.read_text().splitlines():
            parts = [p.strip() for p in line.split(",")]
            try:
                clock = parts[0].split(" ")[1].split(":")
                at = int(clock[0]) * 3600 + int(clock[1]) * 60 + float(clock[2])
                row = (at, float(parts[1]), float(parts[2]), float(parts[3]))
            except (IndexError, ValueError):
                continue
            if at >= begin:
                found.append(row)
        return found

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def second_of_day() -> float:
    now = time.time()
    local = time.localtime(now)
    return local.tm_hour * 3600 + local.tm_min * 60 + local.tm_sec + now % 1


def run(name: str, work: Callable[[], object], seconds: float, sampler: Sampler, num_bytes: float = 0, flops: float = 0) -> dict:
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(3):
        work()
    end.record()
    end.synchronize()
    rounds = max(1, int(2e3 / (begin.elapsed_time(end) * 1e3 / 3)))  # 2 ms between events
    time.sleep(0.5)
    start_of_day, start = second_of_day(), time.monotonic()
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    while time.monotonic() < start + seconds:
        for _ in range(10):
            for _ in range(rounds):
                work()
            events.append(torch.cuda.Event(enable_timing=True))
            events[-1].record()
        if len(events) > 40:
            events[-30].synchronize()
    torch.cuda.synchronize()
    ended = [events[0].elapsed_time(e) for e in events[1:]]
    times = [(b - a) * 1e3 / rounds for a, b in zip([0.0, *ended], ended)]
    late = [t for at, t in zip(ended, times) if at > 500 * seconds]
    samples = sampler.since(start_of_day + seconds / 2)
    samples = [s for s in samples if s[0] < start_of_day + seconds - 0.05]
    row = {
        "case": name, "us": round(statistics.median(late), 3),
        "rest_us": round(statistics.median([t for at, t in zip(ended, times) if at < 6] or times[:1]), 3),
        "series_us": [(round(at, 1), round(t, 2)) for at, t in zip(ended, times) if at < 100 or int(at) % 20 < 2][:120],
        "clock_mhz": statistics.median(s[1] for s in samples) if samples else None,
        "power_w": statistics.median(s[2] for s in samples) if samples else None,
        "temperature": samples[-1][3] if samples else None, "bytes": num_bytes, "flops": flops,
    }  # fmt: skip
    print({k: v for k, v in row.items() if k != "series_us"}, flush=True)
    return row


def product(m: int, k: int, n: int, dtype: torch.dtype = torch.bfloat16, scale: float = 0.02) -> tuple[Callable[[], object], float]:
    a, b = torch.randn(m, k, device="cuda", dtype=dtype) * scale, torch.randn(n, k, device="cuda", dtype=dtype) * scale
    return (lambda: a @ b.t()), 2.0 * m * k * n


def attention(batch: int, heads: int, length: int, width: int, backend: object, is_backward: bool) -> tuple[Callable[[], object], float]:
    from torch.nn.attention import sdpa_kernel

    q, k, v = (torch.randn(batch, heads, length, width, requires_grad=is_backward, **BF16) for _ in range(3))
    flops = 2.0 * batch * heads * length * length * width
    with sdpa_kernel(backend):
        if not is_backward:
            return (lambda: call(backend, q, k, v)), flops
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)
    return (lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)), 2.5 * flops


def call(backend: object, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    from torch.nn.attention import sdpa_kernel

    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=2.4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sampler = Sampler(options.out / "samples.csv")
    time.sleep(1.0)
    rows: list[dict] = []

    def case(name: str, work: Callable[[], object], num_bytes: float = 0, flops: float = 0) -> None:
        try:
            rows.append(run(name, work, options.seconds, sampler, num_bytes, flops))
        except Exception as error:  # one kernel that this torch lacks must not lose the others
            print(name, repr(error)[:300], flush=True)
        (options.out / "clocks.json").write_text(json.dumps(rows, indent=1) + "\n")

    x, y = (torch.randn(1 << 27, **BF16) for _ in range(2))
    case("fill 2^27", lambda: x.fill_(0.5), 2.0 * (1 << 27))
    x.normal_()
    case("add 2^27", lambda: torch.add(x, y, out=y), 6.0 * (1 << 27))
    y.normal_()
    case("copy 2^27", lambda: y.copy_(x), 4.0 * (1 << 27))
    square = torch.randn(16384, 4096, **BF16)
    case("silu 16384x4096", lambda: F.silu(square), 4.0 * square.numel())
    weight = torch.ones(4096, **BF16)
    case("layer_norm 16384x4096", lambda: F.layer_norm(square, (4096,), weight, weight), 4.0 * square.numel())
    wide = torch.randn(8192, 32768, **BF16)
    case("softmax 8192x32768", lambda: torch.softmax(wide, -1), 4.0 * wide.numel())
    cast = square.float()
    case("cast 16384x4096 float32 bfloat16", lambda: cast.to(torch.bfloat16), 6.0 * square.numel())
    parameters = [torch.randn(1 << 24, device="cuda") for _ in range(4)]
    for p in parameters:
        p.requires_grad_()
        p.grad = torch.randn_like(p)
    adam = torch.optim.AdamW(parameters, fused=True)
    case("fused adamw 2^26", adam.step, 28.0 * (1 << 26))

    for m, k, n in ((8192, 8192, 8192), (4096, 4096, 4096), (16384, 4096, 14336), (16384, 14336, 4096), (8192, 768, 3072), (2048, 2048, 2048), (512, 4096, 4096)):
        work, flops = product(m, k, n)
        case(f"mm {m}x{k}x{n} bfloat16", work, 0, flops)
    work, flops = product(8192, 8192, 8192, scale=0.0)
    case("mm 8192x8192x8192 bfloat16 zeros", work, 0, flops)
    work, flops = product(8192, 8192, 8192, torch.float16)
    case("mm 8192x8192x8192 float16", work, 0, flops)
    torch.backends.cuda.matmul.allow_tf32 = True
    work, flops = product(8192, 8192, 8192, torch.float32)
    case("mm 8192x8192x8192 tf32", work, 0, flops)
    torch.backends.cuda.matmul.allow_tf32 = False
    work, flops = product(4096, 4096, 4096, torch.float32)
    case("mm 4096x4096x4096 float32", work, 0, flops)
    one = torch.ones((), device="cuda")
    a8, b8 = (torch.randn(8192, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    case("mm 8192x8192x8192 float8", lambda: torch._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16), 0, 2.0 * 8192**3)

    from torch.nn.attention import SDPBackend

    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        for width, heads in ((128, 32), (64, 32)):
            for is_backward in (False, True):
                work, flops = attention(2, heads, 4096, width, backend, is_backward)
                kind = "backward" if is_backward else "forward"
                case(f"{backend.name.lower()} 2x{heads}x4096x{width} {kind}", work, 0, flops)
    image = torch.randn(128, 256, 56, 56, **BF16).to(memory_format=torch.channels_last)
    kernel = torch.randn(256, 256, 3, 3, **BF16).to(memory_format=torch.channels_last)
    case("conv 128x256x56x56 3x3", lambda: F.conv2d(image, kernel, padding=1), 0, 2.0 * 128 * 56 * 56 * 256 * 256 * 9)

    big, small = x[: 1 << 26], y[: 1 << 26]
    work, flops = product(16384, 4096, 14336)
    for products, adds in ((4, 1), (2, 1), (1, 1), (1, 2), (1, 4), (1, 8), (1, 16)):

        def mixed(products: int = products, adds: int = adds) -> None:
            for _ in range(products):
                work()
            for _ in range(adds):
                torch.add(big, small, out=small)

        case(f"{products} mm 16384x4096x14336 + {adds} add 2^26", mixed, adds * 6.0 * (1 << 26), products * flops)
    sampler.stop()
    (options.out / "samples.csv").unlink()


if __name__ == "__main__":
    main()
