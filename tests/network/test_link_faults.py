"""Slow and broken links in time."""

from __future__ import annotations

import dataclasses

import pytest

from phantora.cluster import Cluster, FaultSpec, Placement
from phantora.errors import UserError
from phantora.network import CommOperation, NetworkSimulator, exclusive_ns
from tiny_clusters import tiny, whole

GB = 10**9
MESSAGE = CommOperation(kind="send_recv", ranks=(0, 4), bytes=GB)  # 10 bytes per ns: 0.1 s


def pair(*faults: FaultSpec) -> Cluster:
    return dataclasses.replace(tiny(2, 4), fault=faults)


def time_ns(*faults: FaultSpec) -> int:
    return exclusive_ns(pair(*faults), whole(pair()), MESSAGE)


def test_half_the_rate_takes_twice_as_long() -> None:
    latency = time_ns() - GB // 10
    assert time_ns(FaultSpec(link="node0.nic0->fabric", factor=0.5)) == pytest.approx(latency + GB / 5, abs=2)
    assert time_ns(FaultSpec(link="node0.nic1->fabric", factor=0.5)) == time_ns()  # another card
    both = FaultSpec(link="node0.nic*", factor=0.5), FaultSpec(link="*nic0*", factor=0.5)
    assert time_ns(*both) == pytest.approx(latency + GB / 2.5, abs=2)  # they multiply


def test_a_link_that_is_slow_for_a_while_costs_what_it_did_not_carry() -> None:
    slow = FaultSpec(link="fabric->node1.nic0", factor=0.25, from_s=0.02, until_s=0.06)
    assert time_ns(slow) == pytest.approx(time_ns() + 0.03 * GB, abs=3)


def test_traffic_on_a_broken_link_waits_until_it_is_back() -> None:
    assert time_ns(FaultSpec(link="fabric->node1.nic0", factor=0, from_s=0.02, until_s=0.5)) == pytest.approx(
        time_ns() + 0.48 * GB, abs=3
    )
    broken_before = FaultSpec(link="fabric->node1.nic0", factor=0, until_s=0.3)
    assert time_ns(broken_before) == pytest.approx(0.3 * GB + GB / 10, abs=3)


def test_others_go_on_while_one_waits() -> None:
    cluster = pair(FaultSpec(link="node0.nic0->fabric", factor=0, until_s=1.0))
    network = NetworkSimulator(cluster, whole(cluster))
    network.begin(0, MESSAGE, 0)
    network.begin(1, CommOperation(kind="send_recv", ranks=(1, 5), bytes=GB), 0)
    ends = {}
    while (now_ns := network.next_ns()) is not None:
        ends.update(dict.fromkeys(network.advance(now_ns), now_ns))
    assert ends[1] == time_ns() and ends[0] > GB


def test_a_link_of_a_node_that_is_not_in_use_is_left_out() -> None:
    cluster = dataclasses.replace(tiny(4, 4), fault=(FaultSpec(link="node3.nic0->fabric", factor=0.5),))
    assert exclusive_ns(cluster, Placement(cluster, 2, 4), MESSAGE) == time_ns()


def test_a_name_that_fits_no_link() -> None:
    with pytest.raises(UserError, match=r"\[\[fault\]\] link 'node9.nic0->fabric': no such link \(did you mean node"):
        time_ns(FaultSpec(link="node9.nic0->fabric", factor=0.5))
