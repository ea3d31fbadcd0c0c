"""NCCL through torch.distributed on the GPUs of one host: time by operation and size, by forced algorithm, and what NCCL chose.

usage: python nccl_bench.py --out DIR [--part sweep --part forced --part choices]

    sweep     collectives.json   every operation, 1 KiB to 4 GiB, NCCL's own choice of algorithm
    forced    forced.json        all_reduce with NCCL_ALGO and NCCL_PROTO forced, a fresh job per setting
    choices   choices.json       algorithm, protocol and channels that NCCL's log names, and its tuner's table

`bytes` is nccl-tests' size: the larger of the input and output buffer of one rank. Data is bf16. Columns of a point:

    us, us_min, us_max      time of one operation as nccl-tests counts it: launches back to back on one stream, the whole
                            over their number; median, least and largest of `batches` batches of `iterations`. The
                            launches wait behind a spinning kernel, so the host's speed does not show; `queued` counts
                            the batches of which all launches were indeed there before the first began on this rank
    us_rank1                the median on rank 1
    unqueued_us             the same without the spinning kernel: the host's launches show
    host_us                 host time of one call, nothing waiting
    isolated_us             one operation on idle GPUs: host time from the call to the end seen by the host, all ranks
                            calling at the same moment; median
    isolated_event_us       the same between two CUDA events around the call
    busbw_gb_s              nccl-tests' bus bandwidth, from us
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from ranks import Job, run_ranks

SIZES = [2**power for power in range(10, 33)]
FORCED_SIZES = [2**power for power in (13, 16, 18, 20, 22, 25, 28, 30)]
SETTINGS = [(algorithm, protocol) for algorithm in ("Ring", "Tree") for protocol in ("LL", "LL128", "Simple")]
POINT_BUDGET_S = 0.25  # timed back-to-back launches of one point take about this long at most

Call = Callable[[], object]


def all_reduce(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    return lambda: dist.all_reduce(x)


def all_gather(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    part = x[: x.numel() // job.world_size]
    return lambda: dist.all_gather_into_tensor(y, part)


def reduce_scatter(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    part = y[: y.numel() // job.world_size]
    return lambda: dist.reduce_scatter_tensor(part, x)


def all_to_all(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    return lambda: dist.all_to_all_single(y, x)


def broadcast(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    return lambda: dist.broadcast(x, 0)


def send_recv(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    """Rank 0 sends, rank 1 receives."""
    return (lambda: dist.send(x, 1)) if job.rank == 0 else (lambda: dist.recv(y, 0))


def exchange(job: Job, x: torch.Tensor, y: torch.Tensor) -> Call:
    """nccl-tests' sendrecv: each rank sends to the next and receives from the previous at once."""
    following, previous = (job.rank + 1) % job.world_size, (job.rank - 1) % job.world_size

    def call() -> None:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, following), dist.P2POp(dist.irecv, y, previous)]):
            work.wait()

    return call


OPERATIONS = {f.__name__: f for f in (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv, exchange)}


def bus_factor(operation: str, world_size: int) -> float:
    """Bus bandwidth over bytes / time, as in nccl-tests' doc/PERFORMANCE.md."""
    if operation == "all_reduce":
        return 2 * (world_size - 1) / world_size
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return (world_size - 1) / world_size
    return 1.0


class Bench:
    """Times operations on one rank."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cycles_per_us = self._spin_rate()

    def _spin_rate(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):  # the first pays for loading the kernel
            begin.record()
            torch.cuda._sleep(20_000_000)
            end.record()
            end.synchronize()
        return 20_000_000 / (begin.elapsed_time(end) * 1e3)

    def buffers(self, num_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.randn(num_bytes // 2, dtype=torch.bfloat16, device="cuda") for _ in range(2))

    def point(self, operation: str, num_bytes: int, isolated: bool = True) -> dict:
        x, y = self.buffers(num_bytes)
        call = OPERATIONS[operation](self.job, x, y)
        for _ in range(3):
            call()
        _, _, rough_us, rough_host_us = self._batch(call, x, 3, 0.0)
        rough_us = self.job.largest(rough_us)
        host_us = self.job.largest(rough_host_us)
        iterations = int(min(20, max(5, POINT_BUDGET_S * 1e6 / 3 / rough_us)))
        batches = 5 if iterations == 20 else 4
        unqueued = [self._batch(call, x, iterations, 0.0) for _ in range(3)]
        host_us = max(host_us, self.job.largest(max(batch[3] for batch in unqueued)))
        spin_us = min(50_000.0, 1000 + 3 * iterations * host_us)
        timed = [self._batch(call, x, iterations, spin_us) for _ in range(batches)]
        us = [batch[2] for batch in timed]
        median = statistics.median(us)
        record = {
            "op": operation, "bytes": num_bytes, "us": median, "us_min": min(us), "us_max": max(us),
            "queued": sum(batch[0] for batch in timed), "iterations": iterations, "batches": batches,
            "unqueued_us": statistics.median(batch[2] for batch in unqueued),
            "host_us": statistics.median(batch[3] for batch in unqueued),
            "busbw_gb_s": num_bytes * bus_factor(operation, self.job.world_size) / median / 1e3,
        }
        if isolated:
            record |= self._isolated(call, rough_us, 20 if iterations == 20 else 5)
        return {key: round(value, 3) if isinstance(value, float) else value for key, value in record.items()}

    def _batch(self, call: Call, x: torch.Tensor, iterations: int, spin_us: float) -> tuple[bool, float, float, float]:
        """(all queued before the first began, total us, us per call, host us per call)."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        x.normal_()  # sums in place grow: keep them finite
        torch.cuda.synchronize()
        self.job.barrier()
        if spin_us:
            torch.cuda._sleep(int(spin_us * self.cycles_per_us))
        call()  # brings the ranks together, outside the timing
        begin.record()
        host_begin = time.perf_counter()
        for _ in range(iterations):
            call()
        host_us = (time.perf_counter() - host_begin) * 1e6 / iterations
        end.record()
        queued = not begin.query()
        end.synchronize()
        total_us = begin.elapsed_time(end) * 1e3
        return queued, total_us, total_us / iterations, host_us

    def _isolated(self, call: Call, rough_us: float, repeats: int) -> dict:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        period_s = 1e-3 + 1.5e-6 * rough_us
        torch.cuda.synchronize()
        first = self.job.common_time(2e-3)
        wall_us, event_us = [], []
        for index in range(repeats):
            moment = first + index * period_s
            while time.perf_counter() < moment:
                pass
            start = time.perf_counter()
            begin.record()
            call()
            end.record()
            end.synchronize()
            wall_us.append((time.perf_counter() - start) * 1e6)
            event_us.append(begin.elapsed_time(end) * 1e3)
        return {"isolated_us": statistics.median(wall_us), "isolated_event_us": statistics.median(event_us)}


def check(job: Job) -> None:
    """Every operation computes what it should (ranks hold rank + 1): a wrong one ends the run."""
    n = 2**16
    total = job.world_size * (job.world_size + 1) / 2
    previous = (job.rank - 1) % job.world_size + 1
    for name, make in OPERATIONS.items():
        x = torch.full((n,), job.rank + 1.0, dtype=torch.bfloat16, device="cuda")
        y = torch.full((n,), float("nan"), dtype=torch.bfloat16, device="cuda")
        make(job, x, y)()
        ranks = torch.arange(1, job.world_size + 1, device="cuda", dtype=x.dtype)
        blocks = ranks.repeat_interleave(n // job.world_size)
        ok = {
            "all_reduce": lambda: (x == total).all(),
            "all_gather": lambda: (y == blocks).all(),
            "reduce_scatter": lambda: (y[: n // job.world_size] == total).all(),
            "all_to_all": lambda: (y == blocks).all(),
            "broadcast": lambda: (x == 1).all(),
            "send_recv": lambda: (y == 1).all() if job.rank == 1 else torch.tensor(True),
            "exchange": lambda: (y == previous).all(),
        }[name]()
        if not ok.item():
            raise RuntimeError(f"{name} gave a wrong result")


def sweep(job: Job, operations: list[str], sizes: list[int], isolated: bool) -> list[dict]:
    bench = Bench(job)
    return [bench.point(operation, size, isolated) for operation in operations for size in sizes]


def checked_sweep(job: Job, sizes: list[int]) -> list[dict]:
    check(job)
    return sweep(job, list(OPERATIONS), sizes, True)


def merged(ranks: list[list[dict]]) -> list[dict]:
    return [first | {"us_rank1": second["us"]} for first, second in zip(ranks[0], ranks[1], strict=True)]


def forced(sizes: list[int]) -> list[dict]:
    """all_reduce under each setting; under Ring the other two ring collectives as well. A refused setting is a row too."""
    rows = []
    for algorithm, protocol in SETTINGS:
        operations = ["all_reduce"] + (["all_gather", "reduce_scatter"] if algorithm == "Ring" else [])
        setting = {"algorithm": algorithm, "protocol": protocol}
        try:
            ranks = run_ranks(sweep, operations, sizes, False, environment={"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol})
            rows += [setting | row for row in merged(ranks)]
        except RuntimeError as error:
            rows.append(setting | {"error": str(error)[-600:]})
    return rows


def call_each(job: Job, sizes: list[int]) -> None:
    for operation in OPERATIONS:
        for size in sizes:
            x = torch.ones(size // 2, dtype=torch.bfloat16, device="cuda")
            OPERATIONS[operation](job, x, torch.empty_like(x))()
    torch.cuda.synchronize()


def choices(sizes: list[int]) -> dict:
    """What NCCL's own log (rank 0) says: the choice per call, and the lines on graphs, channels and the tuner's table."""
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(call_each, sizes, environment={
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING", "NCCL_DEBUG_FILE": f"{folder}/%p.log",
        })  # fmt: skip
        logs = sorted(Path(folder).glob("*.log"))
        text = next((log.read_text(errors="replace") for log in logs if " [0] " in log.read_text(errors="replace")), "")
    lines = [re.sub(r"^\S+:\d+:\d+ \[\d+\] ", "", line) for line in text.splitlines()]  # without host and process
    choice = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+) channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\}")
    rows = []
    for match in filter(None, map(choice.search, lines)):
        function, size, algorithm, protocol, low, high = match.groups()
        rows.append({"function": function, "bytes": int(size), "algorithm": algorithm, "protocol": protocol, "channels": int(high) - int(low) + 1})
    if not rows:  # another wording in this NCCL: keep its lines as they are
        rows = [line for line in lines if "Bytes ->" in line]
    # what names the machine, and what merely repeats itself for every channel
    dull = re.compile(r"Bytes ->|Bootstrap|NET/|eth\d|socket|cudaDriver|commId|MNNVL|Plugin|dlopen|/sys/|INFO (Channel|Ring|Tree) \d|INFO +\d+ :", re.IGNORECASE)
    return {"choices": rows, "log": [line for line in lines if not dull.search(line)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", action="append", choices=("sweep", "forced", "choices"), default=[])
    parser.add_argument("--max-bytes", type=int, default=SIZES[-1])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = [size for size in SIZES if size <= options.max_bytes]
    parts: dict[str, tuple[str, Callable[[], object]]] = {
        "sweep": ("collectives.json", lambda: merged(run_ranks(checked_sweep, sizes, timeout_s=180))),
        "choices": ("choices.json", lambda: choices(sizes[::2])),
        "forced": ("forced.json", lambda: forced([size for size in FORCED_SIZES if size <= options.max_bytes])),
    }
    for part in options.part or parts:
        name, measure = parts[part]
        start = time.monotonic()
        try:
            result = measure()
        except RuntimeError as error:
            print(f"{part} failed: {error}", flush=True)
            continue
        rows = result if isinstance(result, list) else None
        text = "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n" if rows is not None else json.dumps(result, indent=1) + "\n"
        (options.out / name).write_text(text)
        print(f"{part}: {time.monotonic() - start:.1f} s", flush=True)
        for row in rows or []:
            if "error" in row or row["bytes"] in (2**13, 2**20, 2**28, 2**32):
                print("  ", {key: row.get(key) for key in ("op", "algorithm", "protocol", "bytes", "us", "unqueued_us", "isolated_us", "busbw_gb_s", "queued", "error")}, flush=True)


if __name__ == "__main__":
    main()
