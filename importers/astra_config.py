"""ASTRA-sim's system, network and memory configurations as a cluster file.

ASTRA-sim describes links and one figure for compute; a cluster file needs GPUs and hosts too. What is missing comes
from a base (a preset), and the notes say so, as they say where the two descriptions differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from phantora.errors import UserError


class Dimension(Protocol):
    """One dimension of network.yml: topology Ring, FullyConnected or Switch; rate of one link and direction."""

    @property
    def topology(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def bytes_per_ns(self) -> float: ...
    @property
    def latency_ns(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraCluster:
    """text: of the TOML file; notes: what it had to decide."""

    text: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Reach:
    """What one NPU can do in a dimension: rate over all its links, time of a small message to another NPU."""

    bytes_per_s: int
    latency_ns: int


def cluster_file(
    dimensions: Sequence[Dimension], peak_flops: float, memory_bytes_per_ns: float, base: str, shown: str
) -> AstraCluster:
    """The cluster of this network on GPUs of `base`. peak_flops, memory_bytes_per_ns: of system.json, 0 when not given.

    shown: names of the files, for the notes of the cluster. UserError for more than three dimensions.
    """
    if len(dimensions) > 3:
        raise UserError(
            f"a network of {len(dimensions)} dimensions: a cluster file has three at most (node, leaf, spine)"
        )
    notes: list[str] = []
    lines = [
        f"# Made from {' '.join(shown.split())} by `phantora import astra-config`.",
        f"base = {json.dumps(base)}",
        f"num_nodes = {math.prod(d.size for d in dimensions[1:])}",
        f"gpus_per_node = {dimensions[0].size}",
        f"notes = {json.dumps(f'network of {shown}; GPU and host of {base}')}",
        *_gpu(peak_flops, memory_bytes_per_ns, base, notes),
        *_intra_node(dimensions[0], notes),
        *_between_nodes(dimensions, notes),
    ]
    notes.append(
        f"GPU (its memory, caches, clocks) and host (launch costs, PCIe) are those of {base}: ASTRA-sim has none"
    )
    return AstraCluster(text="\n".join(lines) + "\n", notes=tuple(notes))


def _gpu(peak_flops: float, memory_bytes_per_ns: float, base: str, notes: list[str]) -> list[str]:
    lines: list[str] = []
    if memory_bytes_per_ns > 0:
        lines += ["", "[gpu]", f"memory_bytes_per_s = {memory_bytes_per_ns * 1e9!r}  # local-mem-bw"]
    else:
        notes.append(f"local-mem-bw is not given: memory bandwidth of {base}")
    if peak_flops > 0:
        lines += [
            "",
            "[gpu.peak_flops]",
            *(f"{dtype} = {float(peak_flops)!r}  # peak-perf" for dtype in ("float16", "bfloat16")),
        ]
        notes.append(f"peak-perf is taken for float16 and bfloat16; other dtypes have the peaks of {base}")
    else:
        notes.append(f"peak-perf is not given: peaks of {base}")
    return lines


def _reach(dimension: Dimension, notes: list[str], where: str) -> _Reach:
    rate, hops = dimension.bytes_per_ns * 1e9, 1
    if dimension.topology == "Switch":
        hops = 2
    elif dimension.topology == "FullyConnected":
        rate *= dimension.size - 1
    elif dimension.size > 2:
        rate *= 2
        notes.append(
            f"the ring {where} is taken as a switch of the same rate per GPU: "
            "there, messages between GPUs that are not neighbours cost more"
        )
    return _Reach(max(round(rate), 1), round(hops * dimension.latency_ns))


def _intra_node(dimension: Dimension, notes: list[str]) -> list[str]:
    reach = _reach(dimension, notes, "inside a node (dimension 1)")
    kind = "mesh" if dimension.topology == "FullyConnected" else "nvswitch"
    return [
        "",
        "[intra_node]",
        f'kind = "{kind}"  # dimension 1: {dimension.topology} of {dimension.size}',
        f"bytes_per_s = {reach.bytes_per_s}  # of one GPU, all its links together",
        "efficiency = 1.0",
        f"latency_ns = {reach.latency_ns}",
        "nvls = false",
        "num_domain_nodes = 1",
    ]


def _between_nodes(dimensions: Sequence[Dimension], notes: list[str]) -> list[str]:
    if len(dimensions) == 1:
        return ["", "[nic]", "count = 0", "", "[fabric]", 'kind = "none"', "oversubscription = 1.0"]
    reach = _reach(dimensions[1], notes, "between nodes (dimension 2)")
    one_way = reach.latency_ns // 2  # a message crosses two links of the fabric below a leaf
    spines = _spines(dimensions, reach, notes)
    return [
        "",
        "[nic]",
        f"count = {dimensions[0].size}  # every GPU has its own links in dimension 2",
        f"bytes_per_s = {reach.bytes_per_s}",
        "efficiency = 1.0",
        f"latency_ns = {reach.latency_ns - 2 * one_way}",
        "ordered_writes = true",
        "pxn = false",
        "",
        "[fabric]",
        f'kind = "rail-optimised"  # dimension 2: {dimensions[1].topology} of {dimensions[1].size}, one for each rail',
        f"hosts_per_leaf = {dimensions[1].size}",
        "num_spines = 1",
        f"oversubscription = {spines!r}",
        f"latency_ns = {one_way}",
        'spine_cable = "rack"',
    ]


def _spines(dimensions: Sequence[Dimension], leaf: _Reach, notes: list[str]) -> float:
    """Oversubscription of the spines, which stand for dimension 3."""
    if len(dimensions) == 2:
        notes.append(
            "messages between GPUs of different place in their nodes cross a spine, which ASTRA-sim does not have"
        )
        return 1.0
    top = _reach(dimensions[2], notes, "between leaves (dimension 3)")
    ratio = leaf.bytes_per_s / top.bytes_per_s
    if ratio < 1:
        notes.append("dimension 3 is faster than dimension 2: a message over the spines has the rate of its card")
    if top.latency_ns != leaf.latency_ns:
        notes.append(
            "dimension 3 has another latency than dimension 2: a cluster file has one for all hops, that of dimension 2"
        )
    return max(ratio, 1.0)
