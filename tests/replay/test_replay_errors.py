"""What can never end is said with ranks and nodes."""

import pytest
from run_builder import CLUSTER, RunBuilder, nodes

from phantora.cluster import load_cluster
from phantora.errors import UserError
from phantora.replay import replay
from phantora.trace.model import NO_STREAM


def test_opposite_orders_deadlock():
    """Rank 0 runs group a before group b on one stream, rank 1 the other way round."""
    b = RunBuilder(2)
    first, second = b.collective(b.group("a", (0, 1))), b.collective(b.group("b", (0, 1)))
    for rank, order in ((0, (first, second)), (1, (second, first))):
        for i, number in enumerate(order):
            b.launch(rank, 1_000 + i, (number,))
        nodes(b.run.ranks[rank])
    with pytest.raises(
        UserError,
        match=r"deadlock: .*group 'a': rank 0 \(node 100\) wait for rank 1 \(node 101\).*group 'b': rank 1 \(node 100\)",
    ):
        replay(b.run, CLUSTER)


def test_a_member_that_never_comes():
    b = RunBuilder(3)
    number = b.collective(b.group("world", (0, 1, 2)))
    for rank in (0, 2):
        b.launch(rank, 1_000, (number,))
        nodes(b.run.ranks[rank])
    with pytest.raises(
        UserError,
        match=r"all_reduce 0 of group 'world': rank 0 node 100, rank 2 node 100 wait for rank 1 for ever",
    ):
        replay(b.run, CLUSTER)


def test_a_receive_without_a_send():
    b = RunBuilder(2)
    number = b.collective(b.group("p2p", (0, 1)), "send_recv")
    b.launch(1, 1_000, (number,))
    with pytest.raises(UserError, match=r"message 0 from rank 0 to rank 1: rank 1 row 0 waits for rank 0 for ever"):
        replay(b.run, CLUSTER)


def test_a_cycle_is_named():
    b = RunBuilder(1, source="chakra")
    b.kernel(0, 0, 10, stream=NO_STREAM)
    b.kernel(0, 0, 10, stream=NO_STREAM, after=(2,))
    b.kernel(0, 0, 10, stream=NO_STREAM, after=(1,))
    nodes(b.run.ranks[0])
    with pytest.raises(
        UserError, match="rank 0: work that waits for itself: node 101 waits for node 102 waits for node 101"
    ):
        replay(b.run, CLUSTER)


def test_hosts_that_wait_for_each_other():
    b = RunBuilder(2)
    b.wait(0, 0, 0, peers=((1, 0),), reason="store")
    b.wait(1, 0, 0, peers=((0, 0),), reason="store")
    with pytest.raises(UserError, match="host of rank 0: store waits for the host of rank 1"):
        replay(b.run, CLUSTER)


def test_too_small_a_cluster():
    b = RunBuilder(9)
    with pytest.raises(UserError, match=r"lab-h200 has 1 GPUs \(1 x 1\), the run has 9 ranks"):
        replay(b.run, load_cluster("lab-h200"))


def test_missing_ranks_and_runs_that_failed():
    b = RunBuilder(2)
    del b.run.ranks[0]
    with pytest.raises(UserError, match=r"missing ranks: \[0\]"):
        replay(b.run, CLUSTER)
    b = RunBuilder(1)
    b.run.complete, b.run.error = False, "rank 0 failed with exit code 1:\nTraceback"
    with pytest.raises(UserError, match="did not end well and cannot be replayed: rank 0 failed with exit code 1:"):
        replay(b.run, CLUSTER)
