"""What grows with the bytes and is on no link: it never falls, and has the limits that the laws say."""

from __future__ import annotations

import pytest

from phantora.network import constants
from phantora.network.tails import BeyondCache, Duplex, LastReceive, Tail, TreeDip, Widening

MIB = 2**20
TAILS: list[Tail] = [
    LastReceive(link_bytes_per_byte=1.0, step_ns_per_byte=0.01, num_steps=2, is_ll=False),
    LastReceive(link_bytes_per_byte=0.5, step_ns_per_byte=0.01, num_steps=1, is_ll=True),
    Duplex(ns_per_byte=0.003),
    BeyondCache(link_bytes_per_byte=0.5, extra_ns_per_byte=0.002),
    Widening(first_bytes=1024, last_bytes=2**17, ns_per_doubling=150),
    *(TreeDip(factors=factors, ns_per_byte=0.01) for factors in constants.TREE_CORRECTION.values()),
]


@pytest.mark.parametrize("tail", TAILS)
def test_with_the_bytes_themselves_it_never_falls(tail: Tail) -> None:
    sizes = [round(1.07**step) for step in range(500)]
    times = [tail.ns(size) + 0.01 * size for size in sizes]
    assert times == sorted(times)
    assert tail.ns(0) == 0 <= min(map(tail.ns, sizes))


def test_the_share_of_the_last_receive_falls_with_the_loops() -> None:
    def share(num_bytes: int, num_steps: int) -> float:
        tail = LastReceive(link_bytes_per_byte=1.0, step_ns_per_byte=1.0, num_steps=num_steps, is_ll=False)
        return tail.ns(num_bytes) / num_bytes

    assert share(MIB, 1) == share(64 * MIB, 2) == constants.RECEIVE_SHARE
    assert share(2048 * MIB, 1) == pytest.approx(0.32, abs=0.01)  # 0.28 to 0.31 measured
    assert share(4096 * MIB, 2) == pytest.approx(0.14, abs=0.01)  # 0.13 measured


def test_widening_stops() -> None:
    widening = Widening(first_bytes=1024, last_bytes=4096, ns_per_doubling=100)
    assert [widening.ns(size) for size in (1, 1024, 2048, 4096, 2**30)] == [0, 0, 100, 200, 200]


def test_a_tree_reaches_what_the_table_says() -> None:
    dip = TreeDip(factors=constants.TREE_CORRECTION["LL128"], ns_per_byte=1.0)
    assert dip.ns(64 << 10) == pytest.approx((1 / 0.6 - 1) * (64 << 10))  # 64 KiB: the tenth power from 64 bytes on
    assert dip.ns(1 << 40) == 0


def test_tables_of_the_tuner_are_whole() -> None:
    assert {len(factors) for factors in constants.TREE_CORRECTION.values()} == {24}
