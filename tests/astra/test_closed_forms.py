"""Times of single collectives against formulas: n members, C bytes, d endpoint delay, tau(m) a message, pi(m) a
reduction.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from workloads import Workload, coll, comp, node, recv, send

from phantora.astra.algorithms import tree_neighbours
from phantora.astra.network import num_hops
from phantora.astra.simulate import simulate

_LATENCY_NS, _GB_PER_S, _DELAY_NS, _MEMORY = 321.5, 37.0, 17, 900
_RATE = _GB_PER_S * 2**30 / 1e9
_ALL_REDUCE, _ALL_GATHER, _ALL_TO_ALL, _REDUCE_SCATTER = 0, 2, 6, 7


def _tau(size: int, hops: int, is_aware: bool = False) -> int:
    if is_aware:
        return hops * int(_LATENCY_NS + size / _RATE)
    return int(hops * _LATENCY_NS + size / _RATE)


def _pi(size: int) -> int:
    return 3 * int(size / _MEMORY)


def _run(tmp_path: Path, kind: int, algorithm: str, topology: str, n: int, size: int, is_aware: bool) -> int:
    workload = Workload(
        [[coll(1, size, kind=kind)]] * n, [topology], [n], [_GB_PER_S], [_LATENCY_NS], [algorithm],
        {"endpoint-delay": _DELAY_NS, "local-mem-bw": _MEMORY},
    )  # fmt: skip
    return max(simulate(workload.job(tmp_path, is_aware=is_aware)).finish_ns)


@pytest.mark.parametrize("is_aware", [False, True])
@pytest.mark.parametrize("topology", ["Ring", "FullyConnected", "Switch"])
@pytest.mark.parametrize("n,size", [(3, 1 << 20), (8, 777_777), (13, 64 << 20)])
def test_ring(tmp_path: Path, topology: str, n: int, size: int, is_aware: bool) -> None:
    m, d, hops = size // n, _DELAY_NS, num_hops(topology, n, 1)
    tau, tau_whole = _tau(m, hops, is_aware), _tau(size, hops, is_aware)
    expected = {
        _ALL_REDUCE: d + 2 * (n - 1) * (tau + d) + (n - 1) * _pi(m),
        _REDUCE_SCATTER: d + (n - 1) * (tau + d + _pi(m)),
        _ALL_GATHER: d + (n - 1) * (tau_whole + d),
    }
    for kind, time_ns in expected.items():
        assert _run(tmp_path / str(kind), kind, "ring", topology, n, size, is_aware) == time_ns
    if not (topology == "Switch" and is_aware):  # its messages would meet
        time_ns = d + n * (n - 1) // 2 * (tau + d)
        assert _run(tmp_path / "a2a", _ALL_TO_ALL, "ring", topology, n, size, is_aware) == time_ns


@pytest.mark.parametrize("window", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [2, 5, 8])
def test_direct_on_fully_connected(tmp_path: Path, window: int, n: int) -> None:
    size, d = 3 << 20, _DELAY_NS
    m, rounds = size // n, math.ceil((n - 1) / (window or n - 1))
    algorithm = f"direct{window or ''}"
    tau, tau_whole = _tau(m, 1), _tau(size, 1)
    for is_aware in (False, True):
        where = tmp_path / str(is_aware)
        assert _run(where / "ag", _ALL_GATHER, algorithm, "FullyConnected", n, size, is_aware) == d + rounds * (
            tau_whole + d
        )
        assert _run(where / "a2a", _ALL_TO_ALL, algorithm, "FullyConnected", n, size, is_aware) == d + rounds * (
            tau + d
        )
        if not window:
            assert _run(where / "ar", _ALL_REDUCE, algorithm, "FullyConnected", n, size, is_aware) == d + 2 * (
                tau + d
            ) + _pi(m)


@pytest.mark.parametrize("topology", ["Ring", "FullyConnected", "Switch"])
@pytest.mark.parametrize("n", [4, 16])
def test_halving_doubling_unaware(tmp_path: Path, topology: str, n: int) -> None:
    size, d, k = 5 << 20, _DELAY_NS, n.bit_length() - 1
    halves = [_tau(size >> i, num_hops(topology, n, 1 << (i - 1))) + d for i in range(1, k + 1)]
    reductions = sum(_pi(size >> (i + 1)) for i in range(1, k))
    gathers = [_tau(size << (i - 1), num_hops(topology, n, n >> i)) + d for i in range(1, k + 1)]
    expected = {
        _ALL_REDUCE: d + 2 * sum(halves) + reductions,
        _REDUCE_SCATTER: d + sum(halves) + reductions,
        _ALL_GATHER: d + sum(gathers),
    }
    for kind, time_ns in expected.items():
        assert _run(tmp_path / str(kind), kind, "halvingDoubling", topology, n, size, False) == time_ns


@pytest.mark.parametrize("n", [2, 4, 16])
def test_double_binary_tree_on_fully_connected(tmp_path: Path, n: int) -> None:
    size, d, k = 1 << 20, _DELAY_NS, n.bit_length() - 1
    time_ns = d + (2 * k - 1) * (_tau(size, 1) + d + _pi(size)) + _tau(size, 1) + d
    assert _run(tmp_path, _ALL_REDUCE, "doubleBinaryTree", "FullyConnected", n, size, False) == time_ns


@pytest.mark.parametrize("n", [2, 4, 8, 32])
@pytest.mark.parametrize("is_root_last", [False, True])
def test_trees_are_trees(n: int, is_root_last: bool) -> None:
    members = range(100, 100 + 3 * n, 3)
    neighbours = {member: tree_neighbours(members, i, is_root_last) for i, member in enumerate(members)}
    roots = [member for member, (parent, _) in neighbours.items() if parent is None]
    assert roots == [members[n - 1 if is_root_last else 0]]
    reached, front = set(roots), roots
    while front:
        front = [child for one in front for child in neighbours[one][1]]
        assert all(neighbours[child][0] in reached for child in front) and not reached & set(front)
        reached |= set(front)
    assert reached == set(members)


def test_chunks_queue(tmp_path: Path) -> None:
    """7 chunks of C / 7, of which 2 run at once, and a remainder that makes an eighth."""
    workload = Workload(
        [[coll(1, 7 * 80_000 + 1)]] * 4,
        ["Ring"],
        [4],
        system={"preferred-dataset-splits": 7, "active-chunks-per-dimension": 2},
    )
    chunk = [[coll(1, 80_000)]] * 4
    one_ns = max(simulate(Workload(chunk, ["Ring"], [4]).job(tmp_path / "one")).finish_ns)
    assert max(simulate(workload.job(tmp_path / "all")).finish_ns) == 4 * one_ns


def test_two_dimensions_are_one_after_the_other(tmp_path: Path) -> None:
    """Reduce-scatter in the first, all-reduce in the second, all-gather in the first."""
    size = 6 << 20
    both = Workload([[coll(1, size)]] * 12, ["Ring", "Switch"], [4, 3])
    total_ns = max(simulate(both.job(tmp_path / "both")).finish_ns)
    parts = [
        ("Ring", 4, _REDUCE_SCATTER, size),
        ("Switch", 3, _ALL_REDUCE, size // 4),
        ("Ring", 4, _ALL_GATHER, size // 4),
    ]
    for number, (topology, n, kind, part) in enumerate(parts):
        one = Workload([[coll(1, part, kind=kind)]] * n, [topology], [n])
        total_ns -= max(simulate(one.job(tmp_path / str(number))).finish_ns)
    assert total_ns == 0


def test_compute_overlaps_communication_and_ids_are_priorities(tmp_path: Path) -> None:
    """One kernel and one collective at once; of the kernels that are ready the lower id comes first."""
    nodes = [comp(7, 5), comp(3, 2), coll(9, 1 << 20), comp(8, 1, deps=[7, 3]), coll(2, 1 << 20)]
    one_ns = max(simulate(Workload([[coll(1, 1 << 20)]] * 4).job(tmp_path / "one")).finish_ns)
    workload = Workload([nodes] * 4)
    assert simulate(workload.job(tmp_path / "all")).finish_ns == [max(8000, 2 * one_ns)] * 4


def test_messages_and_late_receives(tmp_path: Path) -> None:
    """A send ends with the arrival; a receive at its own start if that is later."""
    ranks = [[send(1, 1, 53_687)], [comp(1, 20), recv(2, 0, 53_687, [1])], [comp(1, 0)], [comp(1, 3)]]
    assert simulate(Workload(ranks).job(tmp_path)).finish_ns == [1499, 20_000, 1, 3000]


def test_roofline(tmp_path: Path) -> None:
    """1e9 FLOP at 100 TFLOPS are 10 us; 1e7 bytes at 1600 GB/s 6.25 us; the slower counts. CPU nodes keep their
    duration.
    """
    system = {"roofline-enabled": 1, "peak-perf": 100}
    bound = [comp(1, 5, num_ops=10**9, tensor_size=10), comp(2, 5, [1], num_ops=10, tensor_size=10**7)]
    cpu = node(3, 4, [2], 2, is_cpu_op=True)
    assert simulate(Workload([[*bound, cpu]] * 4, system=system).job(tmp_path)).finish_ns == [10_000 + 6250 + 2000] * 4


@pytest.mark.parametrize(
    "memory,expected_us",
    [
        ({"memory-type": "PER_NPU_MEMORY_EXPANSION"}, [3, 3, 3, 3]),
        ({"memory-type": "PER_NODE_MEMORY_EXPANSION", "num-nodes": 2, "num-npus-per-node": 2}, [3, 6, 3, 6]),
        ({"memory-type": "MEMORY_POOL"}, [3, 6, 9, 12]),
    ],
)
def test_remote_memory(tmp_path: Path, memory: dict[str, object], expected_us: list[int]) -> None:
    full = {**memory, "remote-mem-latency": 1000, "remote-mem-bw": 5}
    workload = Workload([[node(1, 2, tensor_size=10_000)]] * 4, memory=full)
    assert simulate(workload.job(tmp_path)).finish_ns == [1000 * one for one in expected_us]


def test_replay_only(tmp_path: Path) -> None:
    nodes = [comp(1, 5), coll(2, 1 << 30, [1]), node(3, 5, [2], 7)]
    assert simulate(Workload([nodes] * 4, system={"replay-only": 1}).job(tmp_path)).finish_ns == [12_001] * 4


def test_a_custom_collective_is_its_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody sends to everybody: as messages of the same sizes would take; the node's own size does not count."""
    monkeypatch.chdir(tmp_path)
    n, size = 4, 53_687
    exchange = [
        [send(i, (rank + i) % n, size, tag=i) for i in range(1, n)]
        + [recv(10 + i, (rank - i) % n, size, tag=i) for i in range(1, n)]
        for rank in range(n)
    ]
    Workload(exchange, ["FullyConnected"]).write(tmp_path / "own")
    system = {"all-reduce-implementation-custom": ["own/w"]}
    workload = Workload([[coll(1, 1 << 30)]] * n, ["FullyConnected"], system=system)
    assert simulate(workload.job(tmp_path / "job")).finish_ns == [1499] * n
