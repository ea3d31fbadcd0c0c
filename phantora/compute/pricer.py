"""Operator -> nanoseconds on one GPU.

In order: a measured entry; interpolation between measured points of the same curve; the family's model alone. On a GPU
other than the measured one the time is the measured (or interpolated) time x model on that GPU / model on the measured
one, so it scales with the roof that binds: matrix peak, bandwidth, or number of SMs. Such prices are 'interpolated' on
the same generation (compute capability major), 'roofline' on another, whose kernels differ.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

from phantora.cluster.spec import GpuSpec, HostSpec, IntraNodeSpec
from phantora.compute import host_cost, in_step, power
from phantora.compute.call import Draw, OpCall, Price, Source
from phantora.compute.families import MODELS, describe
from phantora.compute.families.gemm import burst_factor
from phantora.compute.families.movement import INLINE_BYTES
from phantora.compute.roof import KERNEL_GAP_NS, STEP_GAP_NS, Roof
from phantora.compute.table import Table, load
from phantora.compute.work import Work, numel, written
from phantora.errors import UserError

# Beyond this distance from any measured point a price is called 'roofline': the model extrapolates.
_FAR = 3.0

# How much of what the measured GPU shows beyond the model holds on a GPU of another generation, whose libraries choose
# other kernels: half of it, from the A100 products of Vidur (median error 8.8 % with all of it, 9.4 % with none).
_CARRIED = 0.6

_RANK: dict[Source, int] = {"measured": 0, "interpolated": 1, "roofline": 2}
_COPY_LATENCY_NS = 1700  # a pinned copy of 4 KiB takes 1.7-2.6 us
_STAGING_NS = 20_000  # first chunk through the driver's pinned staging buffer
_TRANSFERS = ("memcpy_h2d", "memcpy_d2h", "memcpy_p2p")
_PAGEABLE_READ_FACTOR = 1.5  # device to pageable host memory runs at two thirds of the rate of the other direction


class Pricer:
    """Prices operator calls for one GPU and the host it is attached to. Callers memoise by call."""

    def __init__(
        self, gpu: GpuSpec, host: HostSpec, table: Table | None = None, intra_node: IntraNodeSpec | None = None
    ) -> None:
        """table: measured points; None loads the shipped one (NVIDIA H200). intra_node: how GPUs reach each other; None:
        over PCIe."""
        self.intra_node = intra_node
        self._table = load() if table is None else table
        self._host = host
        self._gpu = gpu
        self._roof = Roof(gpu)
        self._measured_roof = Roof(self._table.gpu)
        self._same_gpu = _same_figures(gpu, self._table)
        self._same_generation = self._roof.generation == self._measured_roof.generation

    def price(self, call: OpCall) -> Price:
        """Device time of `call` when its kernels and their neighbours run back to back on a stream.

        Each kernel includes the gap to the next one (roof.STEP_GAP_NS); time stamps of a profiler leave it out.
        """
        works = _work_of(call)
        num_kernels = sum(map(self._num_kernels, works))
        priced = [(*self._in_step_ns(work), work) for work in works]
        source = max(priced, key=lambda entry: (entry[0], _RANK[entry[1]]))[1] if priced else "measured"
        return Price(
            duration_ns=round(sum(ns for ns, _, _ in priced)) + num_kernels * (STEP_GAP_NS - KERNEL_GAP_NS),
            num_kernels=num_kernels,
            source=source,
            flops=sum(work.flops for work in works),
            bytes=sum(work.bytes for work in works),
            family=works[0].family if works else "none",
            draw=power.together([(round(ns), self._draw(work, ns)) for ns, _, work in priced]),
        )

    def _draw(self, work: Work, ns: float) -> Draw | None:
        """None for transfers: they occupy links, not the GPU."""
        if work.model in _TRANSFERS:
            return None
        whole_ns = round(ns)  # the last bits of `ns` depend on how many threads solved for it
        return power.draw(work, whole_ns, self._gpu, self._roof, in_step.slower(work, whole_ns, self._roof))

    def host_ns(self, call: OpCall) -> tuple[int, int]:
        """Host time of issuing `call`: (from Python, from the autograd engine), nanoseconds."""
        return host_cost.host_ns(call, _work_of(call), self._host)

    def repeated_ns(self, call: OpCall) -> float:
        """Time of `call` in a benchmark that does nothing else for 30 ms: cold inputs, the clock of such load.

        Each kernel includes the gap to the next one of its kind (roof.KERNEL_GAP_NS).
        """
        return sum(_sustained_ns(work, self._work_ns(work)[0]) for work in _work_of(call))

    def _in_step_ns(self, work: Work) -> tuple[float, Source]:
        cold_ns, source = self._work_ns(work)
        return in_step.in_step_ns(work, cold_ns, self._roof), source

    def _work_ns(self, work: Work) -> tuple[float, Source]:
        ns, source = self._known_ns(work)
        return ns, ("roofline" if work.guessed and work.curves[0] not in self._table.points else source)

    def _known_ns(self, work: Work) -> tuple[float, Source]:
        if work.model in _TRANSFERS:
            return self._copy_ns(work), "roofline"
        model, kriging = MODELS[work.model]
        here = model(work.curves[0], work.at, self._roof)
        exact_ns = self._table.exact_ns(work.curves[0], work.at)
        if exact_ns is not None:
            there = here if self._same_gpu else model(work.curves[0], work.at, self._measured_roof)
            residual = math.log(exact_ns / there) * (1.0 if self._same_generation else _CARRIED)
            return here * math.exp(residual) * work.scale, self._source("measured")
        residual, distance = self._table.residual(
            work.curves, work.at, lambda curve, at: model(curve, at, self._measured_roof), kriging
        )
        carried = residual * (1.0 if self._same_generation else _CARRIED)
        return here * math.exp(carried) * work.scale, self._source("interpolated" if distance < _FAR else "roofline")

    def _num_kernels(self, work: Work) -> int:
        """As counted near by, else as the family says; lists of tensors, and their joins, follow the rule of their launches."""
        if work.model == "foreach" or work.model in _TRANSFERS or work.curves[0].startswith("stream/all/cat"):
            return work.num_kernels
        return self._table.num_kernels(work.curves, work.at, MODELS[work.model][1]) or work.num_kernels

    def _source(self, source: Source) -> Source:
        if self._same_gpu:
            return source
        worst: Source = "interpolated" if self._same_generation else "roofline"
        return max(source, worst, key=_RANK.__getitem__)

    def _copy_ns(self, work: Work) -> float:
        """A copy over PCIe: latency and rate; from pageable memory the driver stages it, which is slower."""
        num_bytes = work.at[0]
        if work.model == "memcpy_p2p":
            return _COPY_LATENCY_NS + num_bytes * 1e9 / self._peer_bytes_per_s()
        to_device = work.model == "memcpy_h2d"
        rate = self._host.pcie_h2d_bytes_per_s if to_device else self._host.pcie_d2h_bytes_per_s
        if work.curves[0].endswith("pinned"):
            return _COPY_LATENCY_NS + num_bytes * 1e9 / rate
        slower = self._host.pageable_bytes_per_s / (1.0 if to_device else _PAGEABLE_READ_FACTOR)
        staging = _STAGING_NS if num_bytes > INLINE_BYTES else _STAGING_NS / 2
        return staging + num_bytes * 1e9 / min(rate, slower)

    def _peer_bytes_per_s(self) -> float:
        """What one GPU reads from another or writes to it: over all its links, at the rate that large transfers reach."""
        links = self.intra_node
        if links is None or links.kind == "none":
            return min(self._host.pcie_h2d_bytes_per_s, self._host.pcie_d2h_bytes_per_s)
        return links.bytes_per_s * links.efficiency


def pricer_of(cluster: str, prices: str | None = None) -> Pricer:
    """The pricer of a cluster (a preset or a TOML file) with the shipped table or one of `phantora calibrate`."""
    from phantora.cluster.loader import load_cluster

    found = load_cluster(cluster)
    return Pricer(found.gpu, found.host, None if prices is None else price_table(prices), found.intra_node)


def price_table(path: str) -> Table:
    """The table in a file that a user named. UserError when it is none."""
    try:
        table = load(Path(path))
    except FileNotFoundError:
        raise UserError(f"there is no price table {path} (phantora calibrate --out FILE makes one)") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path}: ")
        raise UserError(f"{path} is no price table of phantora calibrate: {reason}") from None
    if not table.points:
        raise UserError(f"{path} is a price table without points: nothing was measured")
    return table


def _work_of(call: OpCall) -> tuple[Work, ...]:
    """The work of `call`; a call that writes only empty tensors launches nothing."""
    targets = written(call)
    if targets and not any(map(numel, targets)) and not call.name.startswith("aten::_foreach"):
        return ()
    return describe(call)


def _sustained_ns(work: Work, burst_ns: float) -> float:
    sustained_ns = burst_ns
    for _ in range(4):  # the factor depends on the sustained time itself; it converges by 4 % a step
        sustained_ns = burst_ns / burst_factor(work.curves[0], sustained_ns)
    return sustained_ns


def _same_figures(gpu: GpuSpec, table: Table) -> bool:
    measured = table.gpu
    return (
        ".".join(map(str, gpu.compute_capability)) == measured.compute_capability
        and gpu.num_sms == measured.num_sms
        and math.isclose(gpu.memory_bytes_per_s, measured.memory_bytes_per_s, rel_tol=0.01)
    )
