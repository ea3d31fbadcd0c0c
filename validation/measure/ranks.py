"""Run a function on every rank of a fresh NCCL job, inside this script.

Each job is forked from a parent that has imported torch but not touched CUDA or NCCL, so that NCCL reads its
environment (NCCL_ALGO, NCCL_PROTO, ...) anew and no job pays for the import.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

# NVLink SHARP / multicast stays off: on a shared host it can take the GPUs out of service.
SAFE_ENVIRONMENT = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


class Job:
    """What a rank's function gets: who it is, and how to wait for the other ranks without the GPU."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self._cpu_group = dist.new_group(backend="gloo")

    def barrier(self) -> None:
        dist.barrier(group=self._cpu_group)

    def largest(self, value: float) -> float:
        """The largest of the ranks' values, on every rank."""
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._cpu_group)
        return tensor.item()

    def common_time(self, delay_s: float) -> float:
        """A moment of time.perf_counter(), delay_s from now, that is the same on every rank of this host."""
        return self.largest(time.perf_counter()) + delay_s


def run_ranks(function: Callable[..., Any], *args: Any, world_size: int = 2, environment: dict[str, str] | None = None, timeout_s: float = 120) -> list[Any]:
    """function(job, *args) on every rank; the ranks' results. RuntimeError with the traceback if one fails or is late."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_rank_main, args=(function, args, rank, world_size, folder, environment or {}, sender)
            )
            process.start()
            sender.close()
            pipes.append(receiver)
            processes.append(process)
        try:
            return _collect(pipes, time.monotonic() + timeout_s)
        finally:
            for process in processes:  # either it has answered and is leaving, or it waits for a rank that failed
                process.join(0.5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(pipes: list[Connection], deadline: float) -> list[Any]:
    results: dict[Connection, Any] = {}
    while len(results) < len(pipes):
        ready = wait([pipe for pipe in pipes if pipe not in results], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RuntimeError("the ranks did not answer in time")
        for pipe in ready:
            try:
                error, results[pipe] = pipe.recv()
            except EOFError:
                error = "died"
            if error:
                raise RuntimeError(f"rank {pipes.index(pipe)}: {error}")
    return [results[pipe] for pipe in pipes]


def _rank_main(function: Callable[..., Any], args: tuple, rank: int, world_size: int, folder: str, environment: dict[str, str], sender: Any) -> None:
    os.environ.update(SAFE_ENVIRONMENT | {"GLOO_SOCKET_IFNAME": "lo"} | environment)
    try:
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{folder}/store", rank=rank, world_size=world_size, device_id=device)
        torch.manual_seed(rank)
        sender.send((None, function(Job(rank, world_size), *args)))
    except Exception:
        sender.send((traceback.format_exc()[-3000:], None))
    sender.close()
    os._exit(0)  # a rank whose peer failed would wait for it in NCCL's teardown
