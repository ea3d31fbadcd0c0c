"""Makes a table of measured points from benchmark rows.

usage: python -m phantora.compute.build_table OUT.csv.gz ROWS.jsonl.gz... [--date 2026-11-29 --driver ... --torch ...]

Rows are of two kinds: described ones (op, shapes, options; see `described`), and those that
`phantora calibrate` writes, which carry their calls. The call's family says where on which curve the point lies: what
is measured and what is looked up agree by construction.

Load of 30 ms lowers the clock, so long 16-bit products of described rows are entered with the time of a burst
(families.gemm.burst_factor).
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from phantora.compute.call import OpCall
from phantora.compute.call_json import from_json
from phantora.compute.described import calls_of
from phantora.compute.families import MODELS, convolution, describe
from phantora.compute.families.gemm import burst_factor
from phantora.compute.roof import KERNEL_GAP_NS, Roof
from phantora.compute.table import MeasuredGpu, Table
from phantora.compute.work import Work

Row = dict[str, Any]

# Left out: composites of several calls, PCIe copies (priced from the host profile), an addition of a tensor to itself
# (its call does not show that one operand is read, not two), and lists of 200 small tensors whose outputs are allocated
# one by one, where launches and not kernels were timed.
_SKIPPED = {"empty_add", "memcpy_h2d", "memcpy_d2h", "add_views"}
_HOST_BOUND = {("_foreach_sqrt", 200), ("_foreach_norm", 200)}
Point = tuple[str, tuple[int, ...], float, float, int]

# Fields of a row that were measured, beside those that describe it.
_MEASURED = ("us", "host_us", "wall_us", "calls", "kernels", "kernel_sum", "kernels_by_name")

# Operators that prepare the inputs of the one that a row times.
_PREPARING = ("aten::clone", "aten::_to_copy", "aten::arange", "aten::fill_", "aten::constant_pad_nd", "aten::zeros",
              "aten::set_", "aten::as_strided_", "aten::remainder")  # fmt: skip


def is_held_out(row: Row) -> bool:
    """A third of the rows, by a hash of their description (not of what was measured)."""
    described = {k: v for k, v in row.items() if k not in _MEASURED}
    return zlib.crc32(json.dumps(described, sort_keys=True).encode()) % 3 == 0


def _is_isin_of_pairs(call: OpCall) -> bool:
    """isin of few tests: four kernels of other curves, whose shares of its time nobody measured."""
    return call.name == "aten::isin" and len(describe(call)) > 1


def timed_call(row: Row) -> tuple[OpCall, float] | None:
    """(the call that a row timed, device ns); None for rows that are left out."""
    if "error" in row or row["op"] in _SKIPPED or (row["op"], row.get("tensors")) in _HOST_BOUND:
        return None
    if "calls" not in row:
        found, _ = calls_of(row)
        return (found[0], row["us"] * 1e3) if len(found) == 1 else None
    calls = [from_json(data) for data in row["calls"]]
    if any(map(_is_isin_of_pairs, calls)):
        return None
    kernels = [us * 1e3 + KERNEL_GAP_NS for _, us in row.get("kernels", ())]
    device_ns = row["us"] * 1e3 or sum(kernels) or _summed_ns(row)
    while len(calls) > 1 and calls[0].name in _PREPARING:
        calls.pop(0)
        device_ns -= kernels.pop(0) if len(kernels) > 1 else 0.0
    while len(calls) > 1 and calls[-1].name in _PREPARING:
        calls.pop()
    return (calls[0], device_ns) if len(calls) == 1 and device_ns > 0 else None


def _summed_ns(row: Row) -> float:
    """Time of the kernels of an operator that launches very many, with the gaps between them."""
    count, us = row.get("kernel_sum", (0, 0.0))
    return us * 1e3 + count * KERNEL_GAP_NS


def points(rows: Iterable[Row], gpu: MeasuredGpu) -> Iterator[Point]:
    """(curve, position, device ns, host ns, kernels) of each row; equal positions are averaged."""
    roof = Roof(gpu)
    found: dict[tuple[str, tuple[int, ...]], list[tuple[float, float, int]]] = {}
    for row in rows:
        timed = timed_call(row)
        works = () if timed is None else describe(timed[0])
        for work, device_ns in _shared_out(works, timed[1] if timed else 0.0, roof):
            correct = 1.0 if "calls" in row else burst_factor(work.curves[0], device_ns)
            kernels = counted_kernels(row) if len(works) == 1 else 0
            found.setdefault((work.curves[0], work.at), []).append((device_ns * correct, row["host_us"] * 1e3, kernels))
    for (curve, at), times in found.items():
        device, host = (sum(t[i] for t in times) / len(times) for i in (0, 1))
        yield curve, at, device, host, max(t[2] for t in times)


def counted_kernels(row: Row) -> int:
    """Kernels, copies and fills of the operator itself (without those that prepare its inputs); 0 when not counted."""
    if "kernel_sum" in row:
        return row["kernel_sum"][0]
    names = [data["name"] for data in row.get("calls", ())]
    before = next((i for i, name in enumerate(names) if name not in _PREPARING), 0)
    return max(len(row.get("kernels", ())) - before, 0)


def _shared_out(works: tuple[Work, ...], device_ns: float, roof: Roof) -> Iterator[tuple[Work, float]]:
    """An operator of several pieces of work (both gradients of a convolution) is shared out as their models say."""
    works = tuple(work for work in works if work.model in MODELS)
    modelled = [_part_ns(work, roof) * work.scale for work in works]
    for work, own in zip(works, modelled):
        yield work, device_ns * own / sum(modelled) / work.scale


def _part_ns(work: Work, roof: Roof) -> float:
    """What decides a work's share: its model; its product alone where the model itself comes from such rows only."""
    if work.model == "conv" and work.curves[0].split("/")[3] == "thin":
        return convolution.product_ns(work.curves[0], work.at, roof)
    return MODELS[work.model][0](work.curves[0], work.at, roof)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; lines of provenance are left out."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file if line.strip()]
    return [row for row in rows if "op" in row]


def table_of(rows: Iterable[Row], header: dict[str, str], gpu: MeasuredGpu) -> Table:
    """A table in memory."""
    found: dict[str, list[tuple[tuple[int, ...], float, float, int]]] = {}
    for curve, *point in points(rows, gpu):
        found.setdefault(curve, []).append(tuple(point))  # type: ignore[arg-type]
    return Table(gpu, header, found)


def write(table: Table, path: Path) -> int:
    """Writes the table; returns the number of points. The bytes depend on the input only (no time stamp)."""
    lines = [f"# {key}: {value}" for key, value in table.provenance.items()]
    body = sorted(
        f"{curve},{' '.join(map(str, at))},{device:.0f},{host:.0f},{kernels}"
        for curve, rows in table.points.items()
        for at, device, host, kernels in rows
    )
    text = "\n".join(lines + body) + "\n"
    with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=9) as file:
        file.write(text.encode())
    return len(body)


# Figures of the measured GPU: NVIDIA H200 data sheet (dense, no sparsity) and device properties.
H200 = {
    "gpu": "NVIDIA H200",
    "compute_capability": "9.0",
    "num_sms": "132",
    "memory_bytes_per_s": "4.8e12",
    "l2_bytes": str(50 << 20),
    "peak_flops": "float64=67e12 float32=67e12 tf32=494.5e12 float16=989e12 bfloat16=989e12 float8=1979e12 "
    "int8=1979e12",
    "method": "device events over 5-60 launches behind a sleep kernel, inputs rotated beyond L2; 16-bit products of "
    "more than 0.5 ms corrected to the clock of a burst (phantora.compute.build_table)",
}


def main() -> None:
    from phantora.compute.table import measured_gpu

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--date", default="2026-11-29")
    parser.add_argument("--driver", default="580.159.04 (CUDA 13.0)")
    parser.add_argument("--torch", default="2.11.0+cu130")
    options = parser.parse_args()
    header = H200 | {"date": options.date, "driver": options.driver, "torch": options.torch}
    rows = [row for path in options.rows for row in read_rows(path)]
    print(write(table_of(rows, header, measured_gpu(header, options.out)), options.out), "points")


if __name__ == "__main__":
    main()
