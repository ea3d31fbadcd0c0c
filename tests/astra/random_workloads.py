"""Random small workloads that ASTRA-sim could run: every topology, algorithm, group and schedule that is modelled."""

from __future__ import annotations

import random
from typing import Any

from workloads import Workload, coll, comp, node, recv, send

_KINDS = {"ring": (0, 2, 6, 7), "direct": (0, 2, 6, 7), "halvingDoubling": (0, 2, 7), "doubleBinaryTree": (0,)}
_SIZES = (64, 1000, 65536, 1000003, 1 << 20, 5 << 20)


def random_workload(seed: int) -> tuple[Workload, dict[str, Any]]:
    """(workload, options of the simulation)."""
    draw = random.Random(seed)
    is_aware = draw.random() < 0.4
    num_dims = 1 if is_aware else draw.choice((1, 1, 2, 2, 3))
    sizes = [draw.choice((2, 3, 4, 8) if num_dims < 3 else (2, 3, 4)) for _ in range(num_dims)]
    topology = [draw.choice(("Ring", "FullyConnected", "Switch")) for _ in sizes]
    if is_aware and topology[0] == "Ring":
        sizes[0] = max(sizes[0], 3)
    algorithms = [_algorithm(draw, size) for size in sizes]
    if num_dims > 1 and draw.random() < 0.1:
        algorithms = [draw.choice(("oneRing", "oneDirect"))]
    num_npus = 1
    for size in sizes:
        num_npus *= size
    groups = _groups(draw, num_npus)
    kinds = set((0, 2, 6, 7)).intersection(*(_KINDS[_plain(name)] for name in algorithms))
    ranks = _ranks(draw, num_npus, sizes, sorted(kinds), groups, algorithms)
    options = {
        "is_aware": is_aware, "num_queues_per_dim": draw.choice((1, 1, 1, 2, 3)), "rendezvous": draw.random() < 0.15,
    }  # fmt: skip
    system = {
        "preferred-dataset-splits": draw.choice((1, 1, 2, 4, 7)),
        "active-chunks-per-dimension": draw.choice((1, 1, 2, 3, 4)),
        "collective-optimization": draw.choice(("baseline", "localBWAware")),
        "endpoint-delay": draw.choice((1, 10, 100)),
        "local-mem-bw": draw.choice((None, 50, 1600)),
    }  # fmt: skip
    bandwidth = [draw.choice((0.5, 25.0, 50.0, 900.0)) for _ in sizes]
    latency = [draw.choice((0.0, 0.5, 500.0, 936.25)) for _ in sizes]
    if all(value == 0 for value in latency):
        latency[0] = 1.0
    memory = {
        "memory-type": draw.choice(("PER_NPU_MEMORY_EXPANSION", "MEMORY_POOL")),
        "remote-mem-latency": 1000,
        "remote-mem-bw": 50,
    }
    return Workload(ranks, topology, sizes, bandwidth, latency, algorithms, system, memory, groups), options


def _plain(name: str) -> str:
    name = name.rstrip("0123456789")
    return name[3].lower() + name[4:] if name.startswith("one") else name


def _algorithm(draw: random.Random, size: int) -> str:
    names = ["ring", "direct", "direct1", "direct2"]
    if size & (size - 1) == 0:
        names += ["halvingDoubling", "halvingDoubling", "doubleBinaryTree"]
    return draw.choice(names)


def _groups(draw: random.Random, num_npus: int) -> dict[str, list[int]]:
    """The world, and a partition of it into equal groups (contiguous, strided or shuffled)."""
    ranks = list(range(num_npus))
    groups = {"99": ranks[:]}
    divisors = [n for n in range(2, num_npus) if num_npus % n == 0]
    if divisors:
        size = draw.choice(divisors)
        how = draw.choice(("contiguous", "strided", "shuffled"))
        if how == "shuffled":
            draw.shuffle(ranks)
        for i in range(num_npus // size):
            groups[str(i + 1)] = ranks[i :: num_npus // size] if how == "strided" else ranks[i * size : (i + 1) * size]
    return groups


def _ranks(
    draw: random.Random,
    num_npus: int,
    sizes: list[int],
    kinds: list[int],
    groups: dict[str, list[int]],
    algorithms: list[str],
) -> list[list[Any]]:
    """The same nodes everywhere, but for stragglers and the peers of messages."""
    of_rank = {rank: int(name) for name, ranks in groups.items() if name != "99" for rank in ranks}
    group_kinds = [kind for kind in kinds if algorithms != ["doubleBinaryTree"]]
    has_messages, has_stragglers = draw.random() < 0.25, draw.random() < 0.4
    ranks: list[list[Any]] = [[] for _ in range(num_npus)]
    for i in range(1, 2 * draw.randint(2, 6), 2):
        deps = [draw.randint(1, i - 1)] if i > 1 else []
        what = draw.random()
        size, kind, micros = draw.choice(_SIZES), draw.choice(kinds), draw.choice((0, 1, 30, 200))
        involved = [draw.random() < 0.7 for _ in sizes]
        involved[draw.randrange(len(involved))] = True
        if algorithms[0].startswith("one"):
            involved[0] = True
        slow = draw.randrange(num_npus) if has_stragglers and draw.random() < 0.5 else -1
        later = draw.choice((0, 1, 50))
        for rank, nodes in enumerate(ranks):
            parents = deps or []
            wait = comp(i, micros + (17 + rank if rank == slow else 0), parents)
            nodes.append(wait)
            if has_messages and what < 0.5:
                nodes.append(send(i + 1, (rank + 1) % num_npus, size, [i], tag=i))
                nodes.append(recv(1000 + i, (rank - 1) % num_npus, size, [i] if later else [], tag=i))
            elif of_rank and group_kinds and what < 0.4:
                nodes.append(coll(i + 1, size, [i], draw_kind(group_kinds, i, kind), of_rank[rank]))
            elif what < 0.6:
                nodes.append(coll(i + 1, size, [i], kind, 99))
            elif what < 0.9:
                nodes.append(coll(i + 1, size, [i], kind, involved_dim=involved))
            else:
                nodes.append(node(i + 1, 2, [i], tensor_size=size))
    return ranks


def draw_kind(kinds: list[int], number: int, wanted: int) -> int:
    return wanted if wanted in kinds else kinds[number % len(kinds)]
