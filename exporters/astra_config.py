"""Configurations with which ASTRA-sim runs the Chakra traces of a run on a network like the run's own.

Written beside the traces: system.json, network.yml and memory.json for the analytical network without congestion, the
same with the suffix `_1d` for the one with congestion (which knows one dimension only), and run_astra_sim.sh, which
takes the path of the binary. docs/traces.md says what ASTRA-sim's model loses.

Source of the keys and of how ASTRA-sim reads them: ASTRA-sim 518bd513, examples/ and common/, analytical network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phantora.cluster.placement import Placement
from phantora.cluster.routes import Routes
from phantora.cluster.spec import Cluster
from phantora.cluster.topology import Topology
from phantora.trace.model import Run

_GIB = 1 << 30  # ASTRA-sim's GB of a network
_HOPS = {"Switch": 2, "FullyConnected": 1}  # that a message crosses
_ENDPOINT_DELAY_NS = 10  # ASTRA-sim's default
_CHUNKS_OF_SEVERAL_DIMENSIONS = 4  # so that dimensions work at the same time, as NCCL's pipeline does


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of ASTRA-sim's network. bytes_per_s: of one link and direction; latency_ns: of a message across
    it."""

    topology: str
    num_npus: int
    bytes_per_s: float
    latency_ns: float


def write_astra_configs(run: Run, folder: Path | str) -> list[Path]:
    """Write the configurations into the folder of the traces; none for a run of one rank, or on a cluster that is not
    known, as ASTRA-sim's network needs two NPUs."""
    if not isinstance(run.cluster, Cluster) or run.world_size < 2:
        return []
    folder = Path(folder)
    dimensions = dimensions_of(run)
    written = [_write(folder / "memory.json", json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}) + "\n")]
    for suffix, chosen in (("", dimensions), ("_1d", [flattened(dimensions)] if len(dimensions) > 1 else dimensions)):
        written.append(_write(folder / f"system{suffix}.json", _system(run.cluster, chosen)))
        written.append(_write(folder / f"network{suffix}.yml", _network(chosen)))
    script = _write(folder / "run_astra_sim.sh", _SCRIPT.replace("NUM_NPUS", str(run.world_size)))
    script.chmod(0o755)
    return [*written, script]


def dimensions_of(run: Run) -> list[Dimension]:
    """The GPUs that reach each other over NVLink (or PCIe), and as many such groups on the network between nodes.

    ASTRA-sim's dimensions are regular: where the ranks of the run fill their NVLink domains unequally, a node stands
    for one.
    """
    assert isinstance(run.cluster, Cluster)
    cluster, per_node = run.cluster, max(run.nproc_per_node, 1)
    placement = Placement(cluster, -(-run.world_size // per_node), per_node)
    topology = Topology(cluster, placement.num_cluster_nodes)
    near = _ranks_together(topology, placement, per_node)
    found = [_near(cluster, near)] if near > 1 else []
    if run.world_size > near:
        found.append(_far(topology, placement, run.world_size // near))
    return found


def flattened(dimensions: Sequence[Dimension]) -> Dimension:
    """One switch for all, as slow as the slowest dimension."""
    slowest = min(dimensions, key=lambda dimension: dimension.bytes_per_s)
    num_npus = 1
    for dimension in dimensions:
        num_npus *= dimension.num_npus
    return Dimension("Switch", num_npus, slowest.bytes_per_s, max(dimension.latency_ns for dimension in dimensions))


def _ranks_together(topology: Topology, placement: Placement, per_node: int) -> int:
    """How many consecutive ranks share an NVLink domain, the same number in each; else those of a node."""
    domains = [topology.domain(placement.gpu(rank)) for rank in range(placement.world_size)]
    sizes: list[int] = []
    for rank, domain in enumerate(domains):
        if rank and domain == domains[rank - 1]:
            sizes[-1] += 1
        else:
            sizes.append(1)
    regular = len(set(sizes)) == 1 and len(sizes) == len(set(domains))
    return sizes[0] if regular else per_node


def _near(cluster: Cluster, num_npus: int) -> Dimension:
    intra = cluster.intra_node
    rate = intra.bytes_per_s * intra.efficiency
    if intra.kind == "mesh":
        links = cluster.gpus_per_node * intra.num_domain_nodes - 1
        return Dimension("FullyConnected", num_npus, rate / max(links, 1), intra.latency_ns)
    return Dimension("Switch", num_npus, rate, intra.latency_ns)


def _far(topology: Topology, placement: Placement, num_npus: int) -> Dimension:
    """A GPU's share of the cards that the ranks of its node use; the longest way that a message takes."""
    ranks = range(placement.nproc_per_node)
    cards = {topology.card_link(placement.gpu(rank), outwards=True) for rank in ranks}
    first, last = placement.gpu(0), placement.gpu(placement.world_size - placement.nproc_per_node)
    latency_ns = Routes(topology).latency_ns(first, last)
    return Dimension("Switch", num_npus, topology.nic_bytes_per_s * len(cards) / len(ranks), latency_ns)


def _system(cluster: Cluster, dimensions: Sequence[Dimension]) -> str:
    """A ring in each dimension; where all pairs have a link of their own, all of them at once. An all-to-all on a
    switch sends to one peer after the other (direct1), as its `direct` would send to all at the full rate and its ring
    n/2 times too much."""
    meshes = [dimension.topology == "FullyConnected" for dimension in dimensions]
    rings = ["direct" if mesh else "ring" for mesh in meshes]
    system = {
        "scheduling-policy": "LIFO",
        "endpoint-delay": _ENDPOINT_DELAY_NS,
        "active-chunks-per-dimension": 1,  # more would each get the full rate
        "preferred-dataset-splits": _CHUNKS_OF_SEVERAL_DIMENSIONS if len(dimensions) > 1 else 1,
        "all-reduce-implementation": rings,
        "all-gather-implementation": rings,
        "reduce-scatter-implementation": rings,
        "all-to-all-implementation": ["direct" if mesh else "direct1" for mesh in meshes],
        "collective-optimization": "localBWAware",
        "local-mem-bw": round(cluster.gpu.memory_bytes_per_s / 1e9),
        "peak-perf": round(cluster.gpu.peak_flops["bfloat16"] / 1e12),
        "roofline-enabled": 0,
        "replay-only": 0,
    }
    return json.dumps(system, indent=2) + "\n"


def _network(dimensions: Sequence[Dimension]) -> str:
    def row(values: Sequence[object]) -> str:
        return f"[ {', '.join(map(str, values))} ]"

    return (
        f"topology: {row([d.topology for d in dimensions])}\n"
        f"npus_count: {row([d.num_npus for d in dimensions])}\n"
        f"bandwidth: {row([round(d.bytes_per_s / _GIB, 3) for d in dimensions])}  # GB/s (2^30 B/s)\n"
        f"latency: {row([d.latency_ns / _HOPS[d.topology] for d in dimensions])}  # ns per hop\n"
    )


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


_SCRIPT = r"""#!/bin/sh
# Runs ASTRA-sim on the traces in this folder.
# usage: ./run_astra_sim.sh PATH/TO/AstraSim_Analytical_Congestion_Unaware [more options of ASTRA-sim]
# ASTRA-sim exits with 0 when it deadlocks; this script fails unless all NUM_NPUS NPUs finish.
set -u
if [ $# -lt 1 ]; then
    sed -n '2,3s/^# //p' "$0" >&2
    exit 2
fi
binary=$1
shift
case $binary in
    /*) ;;
    */*) binary=$PWD/$binary ;;
esac
cd "$(dirname "$0")" || exit 2
case $(basename "$binary") in
    *Unaware* | *unaware*) suffix= ;;
    *Aware* | *aware*) suffix=_1d ;; # the network with congestion knows one dimension only
    *) suffix= ;;
esac
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
"$binary" --workload-configuration=trace --comm-group-configuration=comm_groups.json \
    --system-configuration=system$suffix.json --network-configuration=network$suffix.yml \
    --remote-memory-configuration=memory.json --logging-folder="$scratch/log" "$@" >"$scratch/output" 2>&1
code=$?
cat "$scratch/output"
finished=$(grep -c '\] finished, [0-9]* cycles' "$scratch/output")
if [ $code -ne 0 ]; then
    echo "run_astra_sim.sh: $binary failed with exit code $code" >&2
    exit $code
fi
if [ "$finished" -ne NUM_NPUS ]; then
    echo "run_astra_sim.sh: $finished of NUM_NPUS NPUs finished: a deadlock" >&2
    exit 1
fi
"""
