"""Several operations at once: they share links, in a way that does not depend on anything but the calls."""

from __future__ import annotations

import random

import pytest

from phantora.cluster import Cluster, load_cluster
from phantora.network import CommOperation, NetworkSimulator, exclusive_ns
from tiny_clusters import tiny, whole

GB = 10**9


def finish_times(cluster: Cluster, begins: list[tuple[int, CommOperation]]) -> dict[int, int]:
    """Begin each operation at its time under its index; index -> end."""
    network, ends = NetworkSimulator(cluster, whole(cluster)), {}
    pending = sorted(enumerate(begins), key=lambda item: (item[1][0], item[0]))
    while pending or network.next_ns() is not None:
        next_ns = network.next_ns()
        if pending and (next_ns is None or pending[0][1][0] <= next_ns):
            key, (now_ns, operation) = pending.pop(0)
            network.begin(key, operation, now_ns)
            continue
        assert next_ns is not None
        ends.update(dict.fromkeys(network.advance(next_ns), next_ns))
    return ends


def gather(*ranks: int, num_bytes: int = GB) -> CommOperation:
    return CommOperation(kind="all_gather", ranks=ranks, bytes=num_bytes)


def test_two_collectives_of_one_group_share_its_links() -> None:
    alone = exclusive_ns(tiny(), whole(tiny()), gather(0, 1, 2, 3))
    ends = finish_times(tiny(), [(0, gather(0, 1, 2, 3)), (0, gather(0, 1, 2, 3))])
    drain = 0.75 * GB / 100
    assert ends[0] == ends[1] == pytest.approx(alone + drain, abs=3)


def test_disjoint_groups_do_not_disturb_one_another() -> None:
    alone = exclusive_ns(tiny(), whole(tiny()), gather(0, 1))
    assert finish_times(tiny(), [(0, gather(0, 1)), (0, gather(2, 3))]) == {0: alone, 1: alone}


def test_a_late_short_one_delays_a_long_one_by_its_own_bytes() -> None:
    long, short = gather(0, 1, 2, 3), gather(0, 1, 2, 3, num_bytes=GB // 10)
    alone = exclusive_ns(tiny(), whole(tiny()), long)
    ends = finish_times(tiny(), [(0, long), (1_000_000, short)])
    assert ends[0] == pytest.approx(alone + 0.075 * GB / 100, abs=3)
    assert ends[1] < ends[0]


def test_rings_of_two_rails_between_nodes_meet_only_inside_the_nodes() -> None:
    cluster = tiny(2, 2)
    alone = exclusive_ns(cluster, whole(cluster), gather(0, 2))
    assert finish_times(cluster, [(0, gather(0, 2)), (0, gather(1, 3))]) == {0: alone, 1: alone}


def test_keys_come_back_in_order_of_begin() -> None:
    network = NetworkSimulator(tiny(), whole(tiny()))
    for key in (7, 3, 5):
        network.begin(key, gather(0, 1, 2, 3), 0)
    assert network.algorithm(3) == "ring/Simple"
    finished: list[int] = []
    while (now_ns := network.next_ns()) is not None:
        finished += network.advance(now_ns)
    assert finished == [7, 3, 5]
    assert network.next_ns() is None


def random_load(seed: int, num_ranks: int) -> list[tuple[int, CommOperation]]:
    pick = random.Random(seed)
    begins = []
    for _ in range(60):
        kind = pick.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"])
        ranks = pick.sample(range(num_ranks), 2 if kind == "send_recv" else pick.choice([1, 2, 4, 8]))
        size = pick.randrange(1, 10**8)
        operation = CommOperation(kind=kind, ranks=tuple(ranks), bytes=size)  # type: ignore[arg-type]
        begins.append((pick.randrange(10**6), operation))
    return begins


@pytest.mark.parametrize("preset", ["dgx-h100", "p4d", "rtx3090-ethernet", "gb200-nvl72"])
def test_equal_calls_give_equal_times(preset: str) -> None:
    cluster = load_cluster(preset)
    first = finish_times(cluster, random_load(1, 16))
    assert first == finish_times(cluster, random_load(1, 16))
    assert sorted(first) == list(range(60))


def test_nothing_is_faster_in_company_than_alone() -> None:
    cluster = load_cluster("dgx-h100")
    begins = random_load(2, 32)
    for key, end_ns in finish_times(cluster, begins).items():
        begin_ns, operation = begins[key]
        assert end_ns - begin_ns >= exclusive_ns(cluster, whole(cluster), operation) - 2


def test_bytes_on_links_are_those_of_the_algorithm() -> None:
    network = NetworkSimulator(tiny(), whole(tiny()))
    network.begin(0, gather(0, 1, 2, 3), 0)
    carried, now_ns = 0.0, 0
    while (next_ns := network.next_ns()) is not None:
        carried += network.link_bytes_per_s().get("node0.gpu0->nvswitch", 0.0) * (next_ns - now_ns) / 1e9
        now_ns = next_ns
        network.advance(now_ns)
    assert carried == pytest.approx(0.75 * GB, abs=200)


def test_2048_gpus() -> None:
    import dataclasses

    cluster = dataclasses.replace(load_cluster("dgx-h100"), num_nodes=256)
    ranks = tuple(range(2048))
    ends = finish_times(cluster, [(0, CommOperation(kind="all_reduce", ranks=ranks, bytes=GB)), (0, gather(*ranks))])
    assert 0 < ends[0] and 0 < ends[1]
