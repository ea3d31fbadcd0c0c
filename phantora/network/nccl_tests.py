"""`phantora nccl-tests`: the sweep over sizes that NVIDIA's nccl-tests makes, on a cluster that is not there.

What nccl-tests reports is the mean time of iterations that are launched one after the other without waiting. On small
messages the launching thread is the limit: with all GPUs of a node in one process (-g 8, as most published tables) it
launches eight kernels an iteration, 30 us on a current server whatever the size. So the time is that of the slower of
launching and running; as both vary from one iteration to the next, the mean of the slower is somewhat more than the
slower of the means, (host^4 + gpu^4)^(1/4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from phantora.cluster.placement import Placement
from phantora.errors import UserError, nearest
from phantora.network import constants
from phantora.network.operation import CommOperation, Kind
from phantora.network.simulator import NetworkSimulator

# nccl-tests' names of programs (all_reduce_perf, alltoall_perf, ...) and ours.
KINDS: dict[str, Kind] = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "alltoall": "all_to_all", "all_to_all": "all_to_all",
    "sendrecv": "send_recv", "send_recv": "send_recv", "gather": "gather", "scatter": "scatter",
}  # fmt: skip
DTYPES: dict[str, tuple[str, int]] = {
    "float": ("float32", 4), "half": ("float16", 2), "bfloat16": ("bfloat16", 2), "double": ("float64", 8),
    "int8": ("int8", 1), "uint8": ("uint8", 1), "int32": ("int32", 4), "int64": ("int64", 8),
}  # fmt: skip
MAX_BYTES = 1 << 50
MAX_SIZES = 2000
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_PER_RANK_COUNT = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    size_bytes: int
    count: int
    """Elements as nccl-tests counts them: of one rank's part where the buffer is divided among ranks."""
    dtype: str
    time_us: float
    algbw_gb_s: float
    busbw_gb_s: float
    algorithm: str
    protocol: str

    def as_json(self) -> dict[str, object]:
        """Fields of one row of --json."""
        return {
            "size": self.size_bytes, "count": self.count, "type": self.dtype, "time_us": round(self.time_us, 3),
            "algbw": round(self.algbw_gb_s, 4), "busbw": round(self.busbw_gb_s, 4), "algorithm": self.algorithm,
            "protocol": self.protocol,
        }  # fmt: skip


def parse_size(text: str) -> int:
    """Bytes of '8', '1K', '32M', '8G' (powers of 1024, as nccl-tests reads them). UserError otherwise."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?|\.[0-9]{1,18})([KMGT]?)(?:I?B)?", text.strip().upper())
    if found is None or not text.isascii():
        raise UserError(f"size {printable(text)}: must be a number of bytes, with K, M, G or T behind it if need be")
    size = int(float(found[1]) * _UNITS[found[2]])
    if size > MAX_BYTES:
        raise UserError(f"size {printable(text)}: must be at most {MAX_BYTES} bytes")
    return size


def printable(text: str) -> str:
    """The text quoted, at most some dozens of characters of it, without any that a terminal would obey."""
    return repr(text[:60]) if text.isascii() else ascii(text[:60])


def sweep_sizes(begin_bytes: int, end_bytes: int, factor: float) -> list[int]:
    """begin, begin x factor, ... up to end. UserError when that is no list, or one of more than MAX_SIZES."""
    if begin_bytes < 1 or end_bytes < begin_bytes:
        raise UserError(f"sizes from {begin_bytes} to {end_bytes} bytes: there are none")
    if not math.isfinite(factor):
        raise UserError(f"-f {factor:g}: must be a number")
    if factor <= 1 and end_bytes > begin_bytes:
        raise UserError(f"-f {factor:g}: must be greater than 1")
    sizes = [begin_bytes]
    while factor > 1 and (next_bytes := max(sizes[-1] + 1, int(min(sizes[-1] * factor, 2.0 * MAX_BYTES)))) <= end_bytes:
        sizes.append(next_bytes)
        if len(sizes) > MAX_SIZES:
            raise UserError(f"-f {factor:g}: more than {MAX_SIZES} sizes from {begin_bytes} to {end_bytes} bytes")
    return sizes


def run_sweep(
    placement: Placement, collective: str, sizes: list[int], *, dtype: str = "float",
    gpus_per_process: int | None = None, environment: Mapping[str, str] | None = None,
) -> list[Row]:  # fmt: skip
    """A row for each size: one collective over all ranks of `placement`, alone in the network.

    gpus_per_process: GPUs that one thread launches for: by default all of the node on one node (nccl-tests -g), and one
    on several (mpirun with a process for each GPU).
    """
    kind = kind_of(collective)
    if dtype not in DTYPES:
        raise UserError(f"unknown type {dtype!r}{nearest(dtype, list(DTYPES))}")
    if placement.world_size < 2:
        raise UserError("nccl-tests needs two GPUs or more")
    if gpus_per_process is None:
        gpus_per_process = placement.nproc_per_node if placement.num_nodes == 1 else 1
    host_us = gpus_per_process * placement.cluster.host.nccl_launch_ns / 1000
    network = NetworkSimulator(placement.cluster, placement, environment, is_strict=True)
    return [_row(network, placement.world_size, kind, size, dtype, host_us) for size in sizes]


def _row(network: NetworkSimulator, num_ranks: int, kind: Kind, size_bytes: int, dtype: str, host_us: float) -> Row:
    factor = busbw_factor(kind, num_ranks)
    gpu_us, label = _gpu_us(network, num_ranks, kind, size_bytes, DTYPES[dtype][0])
    time_us = mean_iteration_us(gpu_us, host_us)
    algbw = size_bytes / time_us / 1000
    algorithm, _, protocol = label.partition("/")
    parts = num_ranks if kind in _PER_RANK_COUNT else 1
    return Row(
        size_bytes=size_bytes, count=size_bytes // DTYPES[dtype][1] // parts, dtype=dtype, time_us=time_us,
        algbw_gb_s=algbw, busbw_gb_s=algbw * factor, algorithm=algorithm, protocol=protocol,
    )  # fmt: skip


def kind_of(collective: str) -> Kind:
    """Our kind of a collective as nccl-tests or we name it. UserError otherwise."""
    kind = KINDS.get(collective.removesuffix("_perf"))
    if kind is None:
        raise UserError(f"unknown collective {collective!r}{nearest(collective, list(KINDS))}")
    return kind


def busbw_factor(kind: Kind, num_ranks: int) -> float:
    """Bus bandwidth over size / time: nccl-tests, doc/PERFORMANCE.md (phantora.trace.busbw has the same for traces,
    in a layer that this one must not import)."""
    share = (num_ranks - 1) / num_ranks
    return {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}.get(kind, share)


def mean_iteration_us(gpu_us: float, host_us: float) -> float:
    """Mean of the slower of launching and running."""
    power = constants.LAUNCH_OVERLAP_EXPONENT
    return float((gpu_us**power + host_us**power) ** (1 / power))


def _gpu_us(
    network: NetworkSimulator, num_ranks: int, kind: Kind, size_bytes: int, dtype: str
) -> tuple[float, str]:
    """Time of one iteration on idle links from virtual time 0 on, and the algorithm. sendrecv: every rank sends to the
    next and receives from the one before it."""
    network.restart()
    ranks = tuple(range(num_ranks))
    if kind == "send_recv":
        ranks = (*ranks, 0)
    network.begin(0, CommOperation(kind=kind, ranks=ranks, bytes=size_bytes, dtype=dtype), 0)
    label = network.algorithm(0)
    while (now_ns := network.next_ns()) is not None:
        network.advance(now_ns)
    return network.now_ns / 1000, label
