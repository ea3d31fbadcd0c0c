"""CPU time of the network model on a leaf-spine of 2,048 GPUs: python benchmarks/network.py"""

from __future__ import annotations

import dataclasses
import random
import resource
import time
from collections.abc import Callable

import numpy as np

from phantora.cluster import Cluster, FabricSpec, Placement, load_cluster
from phantora.cluster.topology import Topology
from phantora.network import CommOperation, NetworkSimulator, exclusive_ns
from phantora.network.collectives import Compiler
from phantora.network.fair_share import make_rows, solve
from phantora.network.fluid import FluidNetwork

NUM_FLOWS = 10_000


def cpu_ms(work: Callable[[], object], repeats: int) -> float:
    """Least process CPU time of `work`, in ms."""
    times = []
    for _ in range(repeats):
        begin = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - begin)
    return min(times) / 1e6


def leaf_spine() -> Cluster:
    """256 nodes of 8 GPUs, two levels of switches."""
    fabric = FabricSpec(kind="fat-tree", hosts_per_leaf=16, num_spines=32, latency_ns=300)
    return dataclasses.replace(load_cluster("dgx-h100"), num_nodes=256, fabric=fabric)


def random_paths(topology: Topology, count: int) -> list[np.ndarray]:
    """Links of `count` flows between random GPUs of different nodes."""
    pick = np.random.default_rng(0)
    sources, destinations = pick.integers(0, topology.num_gpus, (2, 2 * count))
    apart = sources // 8 != destinations // 8
    matrix = topology.route_matrix(sources[apart][:count], destinations[apart][:count])
    return [row[row >= 0] for row in matrix]


def bench_solver(topology: Topology) -> None:
    paths = random_paths(topology, NUM_FLOWS)
    rows = make_rows(paths, [np.ones(len(path)) for path in paths])
    print(f"full solve, {NUM_FLOWS:,} random flows: {cpu_ms(lambda: solve(rows, topology.bytes_per_s), 10):.2f} ms")
    picked = random.Random(0)
    distinct = paths[:500]
    classes = make_rows(distinct, [np.full(len(path), float(picked.randrange(1, 40))) for path in distinct])
    print(f"full solve, the same in 500 classes: {cpu_ms(lambda: solve(classes, topology.bytes_per_s), 20):.2f} ms")


def bench_arrivals(topology: Topology, count: int) -> None:
    paths = random_paths(topology, count + 60)
    fluid = FluidNetwork(topology.bytes_per_s)
    for number, path in enumerate(paths[:count]):
        fluid.begin(number, path, np.ones(len(path)), 1e9, 0)
    fluid.next_ns()
    times = []
    for number in range(count, count + 60):
        begin = time.process_time_ns()
        fluid.begin(number, paths[number], np.ones(len(paths[number])), 1e9, number)
        fluid.next_ns()
        times.append((time.process_time_ns() - begin) / 1e6)
    print(f"one arrival among {count:,} flows: {sorted(times)[len(times) // 2]:.3f} ms (median of {len(times)})")


def bench_classes(topology: Topology) -> None:
    """Arrivals among 10,000 flows that share 500 paths, as the chunks and channels of collectives do."""
    paths = random_paths(topology, 500)
    fluid = FluidNetwork(topology.bytes_per_s)
    for number in range(NUM_FLOWS):
        fluid.begin(number, paths[number % 500], np.ones(len(paths[number % 500])), 1e9, 0)
    fluid.next_ns()
    times = []
    for number in range(NUM_FLOWS, NUM_FLOWS + 60):
        begin = time.process_time_ns()
        fluid.begin(number, paths[number % 500], np.ones(len(paths[number % 500])), 1e9, number)
        fluid.next_ns()
        times.append((time.process_time_ns() - begin) / 1e6)
    print(f"one arrival among {NUM_FLOWS:,} flows on 500 paths: {sorted(times)[30]:.3f} ms (median of 60)")


def bench_large(num_nodes: int) -> None:
    """One all-reduce over all GPUs of a large cluster, first call included."""
    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=num_nodes)
    placement = Placement(cluster, num_nodes, 8)
    operation = CommOperation(kind="all_reduce", ranks=tuple(range(8 * num_nodes)), bytes=1 << 30)
    spent_ms = cpu_ms(lambda: exclusive_ns(cluster, placement, operation), 1)
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"all-reduce over {8 * num_nodes:,} GPUs: {spent_ms:.0f} ms; {memory_mib:.0f} MiB of memory so far")


def bench_collectives(cluster: Cluster) -> None:
    placement = Placement(cluster, 256, 8)
    everyone = tuple(range(2048))
    for kind in ("all_reduce", "all_gather", "all_to_all"):
        compiler = Compiler(Topology(cluster), placement)
        operation = CommOperation(kind=kind, ranks=everyone, bytes=1 << 30)  # type: ignore[arg-type]
        first, later = (cpu_ms(lambda: compiler.compile(operation), repeats) for repeats in (1, 20))
        print(f"compile {kind} of 2,048 GPUs: {first:.0f} ms first, {later:.3f} ms later")
    network = NetworkSimulator(cluster, placement)
    groups = [tuple(range(local, 2048, 8)) for local in range(8)] + [tuple(range(n * 8, n * 8 + 8)) for n in range(256)]

    def step() -> None:
        begin_ns = bench_collectives.now_ns  # type: ignore[attr-defined]
        for key, ranks in enumerate(groups):
            network.begin(key, CommOperation(kind="all_gather", ranks=ranks, bytes=1 << 26), begin_ns)
        while (now_ns := network.next_ns()) is not None:
            network.advance(now_ns)
            bench_collectives.now_ns = now_ns  # type: ignore[attr-defined]

    bench_collectives.now_ns = 0  # type: ignore[attr-defined]
    step()
    print(f"264 all-gathers at once (8 across nodes, 256 inside): {cpu_ms(step, 3) / len(groups):.3f} ms each")


def main() -> None:
    """Print all figures."""
    cluster = leaf_spine()
    topology = Topology(cluster)
    print(f"{topology.num_gpus:,} GPUs, {topology.num_links:,} links")
    bench_large(2048)
    bench_solver(topology)
    bench_classes(topology)
    for count in (100, 1000, NUM_FLOWS):
        bench_arrivals(topology, count)
    bench_collectives(cluster)


if __name__ == "__main__":
    main()
