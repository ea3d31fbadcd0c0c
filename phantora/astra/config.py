"""What ASTRA-sim reads: system.json, network.yml, memory.json and the communicator groups, checked.

Source of keys, defaults and units: astra-sim, system/Sys.cc (initialize_sys), system/astraccl/CollectiveImplLookup.cc,
remote_memory_backend/analytical/AnalyticalRemoteMemory.cc; astra-network-analytical,
common/network-parser/NetworkParser.cc.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from phantora.astra.documents import (
    Entry,
    Reader,
    read_json_object,
    read_yaml_mapping,
    shown,
)
from phantora.errors import UserError, nearest

ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, REDUCE_SCATTER = 0, 2, 5, 6, 7
COLLECTIVES = {
    ALL_REDUCE: "all-reduce", ALL_GATHER: "all-gather", ALL_TO_ALL: "all-to-all", REDUCE_SCATTER: "reduce-scatter",
}  # fmt: skip
_ALGORITHM = re.compile(r"(ring|oneRing|halvingDoubling|oneHalvingDoubling|doubleBinaryTree|direct|oneDirect)(\d*)")
_ALGORITHMS = ["ring", "oneRing", "halvingDoubling", "oneHalvingDoubling", "doubleBinaryTree", "direct", "oneDirect"]
_READ = [
    "scheduling-policy", "endpoint-delay", "active-chunks-per-dimension", "preferred-dataset-splits",
    "collective-optimization", "local-mem-bw", "peak-perf", "roofline-enabled", "replay-only", "model-shared-bus",
    "track-local-mem", "per-node-custom-implementation",
    *(f"{name}-implementation{suffix}" for name in COLLECTIVES.values() for suffix in ("", "-custom")),
]  # fmt: skip
_UNREAD = [
    "boost-mode", "trace-enabled", "local-mem-trace-filename", "intra-dimension-scheduling",
    "inter-dimension-scheduling", "L", "o", "g", "G", "local-reduction-delay",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One entry of an implementation list. `window`: outstanding messages of `direct`, 0 for all."""

    name: str
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """system.json."""

    endpoint_delay_ns: int = 10
    active_chunks: int = 1
    splits: int = 1
    """preferred-dataset-splits: into how many chunks a collective is cut"""
    is_baseline: bool | None = None
    """collective-optimization: baseline (True), localBWAware (False), not given (None)"""
    local_mem_bytes_per_ns: float = 0.0
    """local-mem-bw; 0: reductions cost nothing"""
    peak_flops: float = 0.0
    roofline: bool = False
    replay_only: bool = False
    algorithms: dict[int, tuple[Algorithm, ...]] = field(default_factory=dict)
    """collective type -> one algorithm per dimension"""
    custom: dict[int, str] = field(default_factory=dict)
    """collective type -> prefix of the traces that describe it"""
    custom_nodes: dict[int, str] = field(default_factory=dict)
    """node id -> prefix"""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One entry of each list of network.yml."""

    topology: str
    size: int
    bytes_per_ns: float
    latency_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """memory.json. `npus_per_queue`: how many NPUs share a queue of transactions, 0 if none waits for another."""

    exists: bool = False
    latency_ns: int = 0
    bytes_per_s: float = 0.0
    npus_per_queue: int = 0

    def access_ns(self, size_bytes: int) -> int:
        """Source: AnalyticalRemoteMemory::get_remote_mem_runtime."""
        return self.latency_ns + int(size_bytes / self.bytes_per_s * 1e9)


Groups = dict[int, tuple[int, ...]]


def load_system(path: Path, num_dims: int, injection_scale: float = 1.0) -> System:
    """system.json for `num_dims` dimensions. UserError for what ASTRA-sim refuses, or hangs or crashes on."""
    read = Reader(path, read_json_object(path))
    read.note_unread(_READ, _UNREAD)
    read.choice(
        "scheduling-policy", ["LIFO", "FIFO", "EXPLICIT"]
    )  # one collective at a time: none of them changes a time
    for key in ("model-shared-bus", "track-local-mem"):
        if read.flag(key):
            raise UserError(f'{path}: "{key}" is not modelled; set it to 0')
    optimization = read.choice("collective-optimization", ["baseline", "localBWAware"])
    delay_ns = int(read.integer("endpoint-delay", 10, least=1) * injection_scale)
    if delay_ns < 1:
        raise UserError(
            f"{path}: an endpoint-delay of less than 1 ns makes events at time 0, which ASTRA-sim cannot run"
        )
    custom = {kind: f"{name}-implementation-custom" for kind, name in COLLECTIVES.items()}
    return System(
        endpoint_delay_ns=delay_ns,
        active_chunks=read.integer("active-chunks-per-dimension", 1, least=1),
        splits=read.integer("preferred-dataset-splits", None, least=1),
        is_baseline=None if optimization is None else optimization == "baseline",
        local_mem_bytes_per_ns=read.number("local-mem-bw", 0.0),
        peak_flops=read.number("peak-perf", 0.0) * 1000000000000,
        roofline=_roofline(read),
        replay_only=read.flag("replay-only"),
        algorithms={kind: a for kind, name in COLLECTIVES.items() if (a := _algorithms(read, name, num_dims))},
        custom={kind: prefix for kind, key in custom.items() if (prefix := _custom(read, key))},
        custom_nodes=_custom_nodes(read),
    )


def _roofline(read: Reader) -> bool:
    if not read.flag("roofline-enabled"):
        return False
    for key in ("local-mem-bw", "peak-perf"):
        if not read.number(key, 0.0) > 0:
            raise UserError(f'{read.path}: roofline-enabled needs "{key}" above 0')
    return True


def _algorithms(read: Reader, name: str, num_dims: int) -> tuple[Algorithm, ...]:
    key = f"{name}-implementation"
    words = read.words(key) or ()
    if len(words) > num_dims:
        raise UserError(f'{read.path}: "{key}" has {len(words)} entries, the network {num_dims} dimensions')
    return tuple(parse_algorithm(read.path, key, word) for word in words)


def parse_algorithm(path: Path, key: str, word: str) -> Algorithm:
    """`ring`, `direct4`, ...; UserError for anything else."""
    match = _ALGORITHM.fullmatch(word)
    if match is None or (match[2] and not match[1].lower().endswith("direct")) or match[2] == "0" or len(match[2]) > 5:
        raise UserError(f'{path}: "{key}": unknown algorithm {shown(word)}{nearest(word, _ALGORITHMS)}')
    return Algorithm(match[1], int(match[2] or 0))


def _custom(read: Reader, key: str) -> str | None:
    words = read.words(key)
    if words is not None and len(words) != 1:
        raise read.fail(key, "must be an array of one prefix")
    return words[0] if words else None


def _custom_nodes(read: Reader) -> dict[int, str]:
    where = read.values.get("per-node-custom-implementation")
    if where is None:
        return {}
    if not isinstance(where, str):
        raise read.fail("per-node-custom-implementation", "must be the path of a YAML file")
    found = {}
    for key, entry in read_yaml_mapping(Path(where)).items():
        if not key.isdigit() or not isinstance(entry, Entry):
            raise UserError(f"{where}: must map node ids to prefixes, not {shown(key)}")
        found[int(key)] = entry.text
    return found


def load_network(path: Path) -> tuple[Dimension, ...]:
    """network.yml: one Dimension per entry. Bandwidths there are in 2^30 bytes per second."""
    values = read_yaml_mapping(path)
    names = [entry.text for entry in _entries(path, values, "topology")]
    sizes = _numbers(
        path, values, "npus_count", len(names), lambda n: n.is_integer() and 2 <= n <= 1 << 20, "an integer from 2 on"
    )
    bandwidths = _numbers(path, values, "bandwidth", len(names), lambda n: 0 < n < 1e15, "a number above 0")
    latencies = _numbers(path, values, "latency", len(names), lambda n: 0 <= n < 1e15, "a number, not negative")
    for entry in _entries(path, values, "topology"):
        if entry.text not in ("Ring", "FullyConnected", "Switch"):
            known = nearest(entry.text, ["Ring", "FullyConnected", "Switch"])
            raise UserError(f"{path}: line {entry.line}: unknown topology {shown(entry.text)}{known}")
    if math.prod(sizes) > 1 << 20:
        raise UserError(f"{path}: {math.prod(sizes):.0f} NPUs; at most {1 << 20}")
    rates = [bandwidth * (1 << 30) / 1_000_000_000 for bandwidth in bandwidths]
    return tuple(Dimension(name, int(n), rate, ns) for name, n, rate, ns in zip(names, sizes, rates, latencies))


def _entries(path: Path, values: dict[str, Entry | list[Entry]], key: str) -> list[Entry]:
    found = values.get(key)
    if not isinstance(found, list) or not found:
        raise UserError(f"{path}: {key} must be a list with one entry per dimension")
    return found


def _numbers(
    path: Path, values: dict[str, Entry | list[Entry]], key: str, count: int, good: Callable[[float], bool], what: str
) -> list[float]:
    entries, numbers = _entries(path, values, key), []
    if len(entries) != count:
        raise UserError(f"{path}: line {entries[0].line}: {key} has {len(entries)} entries, topology {count}")
    for entry in entries:
        try:
            number = float(entry.text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or not good(number):
            raise UserError(f"{path}: line {entry.line}: {key} must be {what}, not {shown(entry.text)}")
        numbers.append(number)
    return numbers


def load_memory(path: Path, num_npus: int) -> Memory:
    """memory.json."""
    read = Reader(path, read_json_object(path))
    read.note_unread(["memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node"], [])
    kinds = ["NO_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL"]
    kind = read.choice("memory-type", kinds)
    if kind is None:
        raise UserError(f'{path}: "memory-type" is missing (one of {", ".join(kinds)})')
    if kind == "NO_MEMORY_EXPANSION":
        return Memory()
    rate = read.number("remote-mem-bw", None) * 1e9
    if not rate > 0:
        raise read.fail("remote-mem-bw", "must be above 0")
    shared = 0
    if kind == "MEMORY_POOL":
        shared = num_npus
    elif kind == "PER_NODE_MEMORY_EXPANSION":
        shared = read.integer("num-npus-per-node", None, least=1)
        num_nodes = read.integer("num-nodes", None, least=1)
        product = f"num-nodes x num-npus-per-node ({num_nodes} x {shared})"
        if shared * num_nodes < num_npus:
            raise UserError(f"{path}: {product} is less than the {num_npus} NPUs of the network")
        if shared * num_nodes > num_npus:
            note = f"{path}: {product} is more than the {num_npus} NPUs of the network; the others stay empty"
            print(f"phantora: note: {note}", file=sys.stderr)
    latency_ns = read.integer("remote-mem-latency", 0)
    return Memory(exists=True, latency_ns=latency_ns, bytes_per_s=rate, npus_per_queue=shared)


def load_groups(path: Path, num_npus: int) -> Groups:
    """group id -> ranks, in the order of the file, which is the order of the ring."""
    groups: Groups = {}
    for key, ranks in read_json_object(path).items():
        if not re.fullmatch(r"0*[1-9]\d{0,8}", key):
            raise UserError(f'{path}: "{shown(key)}": a group is called by a positive integer')
        good = isinstance(ranks, list) and all(type(rank) is int and 0 <= rank < num_npus for rank in ranks)
        if not good or not ranks:
            raise UserError(f'{path}: "{key}" must list ranks from 0 to {num_npus - 1}, not {shown(ranks)}')
        if len(set(ranks)) != len(ranks):
            raise UserError(f'{path}: "{key}" lists a rank twice: {shown(ranks)}')
        if int(key) in groups:
            raise UserError(f"{path}: group {int(key)} stands there twice")
        groups[int(key)] = tuple(ranks)
    return groups
