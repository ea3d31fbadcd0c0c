"""Prices of single fused kernels beside measured ones: the Triton kernels of measure/compile_bench.py.

Each measured kernel comes with the text that Inductor generated for it, its iteration space and its buffers. They are
described as intercept/compiled describes a simulated one, and priced. Kernels of the part `kernels` fall in two halves by a
hash of case, name and sizes: the constants of compute/families/fused.py are fitted to the first alone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.pricer import Pricer
from phantora.compute.roof import KERNEL_GAP_NS
from phantora.intercept.compiled import accesses, source

_POINTER = re.compile(r"'(\w+_ptr\d+)': '\*(\w+)'")
_SIZES = re.compile(r"^\s*([xyz]|r\d*_)numel = (\d+)", re.M)
_INDEX = re.compile(r"^\s*([xyzr]\d*_?\d+) = (.*)$", re.M)
_ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i16": 2}
LARGE_US = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One kernel: where it ran, how often per run, its device time, and the call that is priced."""

    group: str
    call: OpCall
    count: float
    us: float
    held_out: bool


def measured_kernels(rows: Iterable[Mapping[str, Any]]) -> Iterator[Measured]:
    """Of the rows of one part. Names that stand for several different kernels are left out."""
    for row in rows:
        case = row.get("case") or f"{row['model']}-b{row['batch']}-s{row['seq']}-{row['mode']}"
        for kernel in row.get("kernels", ()):
            described = [each for each in kernel["described"] if "error" not in each]
            if not described or any(_is_other(each, described[0]) for each in described):
                continue
            key = f"{case}/{kernel['kernel']}/{described[0]['numels']}"
            yield Measured(
                group=case.split("/")[0],
                call=_call(kernel["kernel"], described[0]),
                count=kernel["count"],
                us=kernel["us"],
                held_out=bool(hashlib.sha256(key.encode()).digest()[0] % 2),
            )


def _is_other(one: Mapping[str, Any], first: Mapping[str, Any]) -> bool:
    return (one["bytes"], one["numels"]) != (first["bytes"], first["numels"])


def _call(name: str, described: Mapping[str, Any]) -> OpCall:
    text = described["source"]
    rows = columns = 1
    for prefix, numel in described["numels"].items():
        rows, columns = (rows, columns * numel) if prefix.startswith("r") else (rows * numel, columns)
    facts = {
        "kind": _kind(described, text),
        "rows": rows,
        "columns": columns,
        "reductions": described["reductions"],
        **dataclasses.asdict(source.count(text)),
        **dataclasses.asdict(accesses.count(text)),
        "atomic": "'atomic_add_found': True" in text,
        "bytes": _moved(described, text, rows * columns),
    }
    return OpCall(name=f"fused::{name}", args=tuple(facts.items()), outputs=(TensorSpec((1,), (1,), "float32"),))


def _kind(described: Mapping[str, Any], text: str) -> str:
    if described["mix_order"]:
        return "mixed"
    if described["persistent"]:
        return "persistent"
    if "@triton_heuristics.reduction" not in text:
        return "pointwise"
    return "outer" if "ReductionHint.OUTER" in text else "looped"


def _moved(described: Mapping[str, Any], text: str, elements: int) -> int:
    """Bytes of every buffer's distinct elements. Inductor's own count lacks buffers that are written in place."""
    own = _traffic(text, elements, max((each["numel"] for each in described["arguments"]), default=0))
    pointers = len(_POINTER.findall(text))
    if pointers > len(described["arguments"]):
        return max(own, described["bytes"])
    return described["bytes"] if accesses.count(text).gathers else min(own, described["bytes"])


def _traffic(text: str, elements: int, largest: int) -> int:
    """What intercept/compiled/traffic.py counts from Inductor's objects, from the kernel's text alone."""
    body = text.rpartition("@triton.jit")[2]
    sizes = {name[0]: int(numel) for name, numel in _SIZES.findall(body)}
    ranges = {name: _range(value, sizes.get(name[0], 1)) for name, value in _INDEX.findall(body)}
    items = {name: _ITEM_BYTES.get(dtype, 1) for name, dtype in _POINTER.findall(text)}
    total = 0
    for pointer, item_bytes in items.items():
        for kinds in (("load",), ("store", "atomic_add")):
            indices = {index for kind, name, index in accesses.indices(body) if name == pointer and kind in kinds}
            touched = sum(_elements(each, ranges, sizes, elements) for each in indices)
            total += min(touched, max(largest, elements)) * item_bytes
    return total


def _range(value: str, size: int) -> int:
    """How many values `(xindex // 64) % 512` has."""
    step = re.search(r"// (\d+)", value)
    modulus = re.search(r"% (\d+)", value)
    values = -(-size // int(step[1])) if step else size
    return min(values, int(modulus[1])) if modulus else values


def _elements(index: str, ranges: Mapping[str, int], sizes: Mapping[str, int], elements: int) -> int:
    if "tmp" in index:
        return elements
    used = [name for name in ranges if re.search(rf"\b{name}\b", index)]
    count = 1
    for axis in dict.fromkeys(name[0] for name in used):
        product = 1
        for name in used:
            product *= ranges[name] if name[0] == axis else 1
        count *= min(product, sizes.get(axis, 1))
    return min(count, elements)


def errors_table(kernels: Iterable[Measured], pricer: Pricer) -> str:
    """A line for each group and kind: number, median and 90th percentile of |error|, and that of the summed time."""
    groups: dict[str, list[tuple[Measured, float]]] = {}
    for kernel in kernels:
        error = (pricer.repeated_ns(kernel.call) - KERNEL_GAP_NS) / 1e3 / kernel.us - 1
        for name in (f"{kernel.group} {kernel.call.arg('kind')}", "~all"):
            groups.setdefault(name, []).append((kernel, error))
    return "\n".join(_line(name.lstrip("~"), rows) for name, rows in sorted(groups.items()))


def _line(name: str, rows: list[tuple[Measured, float]]) -> str:
    total = sum(kernel.count * kernel.us for kernel, _ in rows)
    summed = sum(kernel.count * kernel.us * error for kernel, error in rows) / total
    large = [abs(error) for kernel, error in rows if kernel.us > LARGE_US]
    return f"{name:44} {_spread([abs(e) for _, e in rows])}   over {LARGE_US:g} us: {_spread(large)}   sum {summed:+6.1%}"


def _spread(errors: list[float]) -> str:
    if not errors:
        return f"{0:3} {'':20}"
    return f"{len(errors):3} median {statistics.median(errors):5.1%} p90 {sorted(errors)[int(0.9 * len(errors))]:5.1%}"
