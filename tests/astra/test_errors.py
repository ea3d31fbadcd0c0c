"""What cannot be simulated is an error with rank, node and reason, and exit code 2, also where ASTRA-sim hangs or exits
with 0.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from workloads import Workload, arguments, coll, comp, framed, inputs, node, recv, send

from phantora.astra.simulate import WAYS, load, simulate
from phantora.cli import main
from phantora.errors import UserError
from phantora.exporters.chakra_schema import GlobalMetadata


_FAST_ROOFLINE = {"roofline-enabled": 1, "peak-perf": 1, "local-mem-bw": 1e12}


def _error(tmp_path: Path, workload: Workload, **options: Any) -> str:
    """The same from every way of simulating."""
    with pytest.raises(UserError) as caught:
        simulate(workload.job(tmp_path, **options))
    for ways in (WAYS[1:], WAYS[2:]):
        with pytest.raises(UserError):
            simulate(workload.job(tmp_path, **options), ways)
    return str(caught.value)


def _all(*nodes: Any, n: int = 4) -> list[list[Any]]:
    return [list(nodes)] * n


def test_collectives_in_different_orders_deadlock(tmp_path: Path) -> None:
    groups = {"1": [0, 1, 2, 3], "2": [0, 1, 2, 3]}
    ranks = [[coll(1, group=1), coll(2, group=2)]] * 3 + [[coll(1, group=2), coll(2, group=1)]]
    text = _error(tmp_path, Workload(ranks, groups=groups))
    assert "deadlock: 4 of 4 NPUs never finish" in text
    assert (
        "rank 0: node 1 (all-reduce of 1048576 B, group 1)" in text
        and "rank 3: node 1 (all-reduce of 1048576 B, group 2)" in text
    )


def test_a_rank_that_misses_a_collective(tmp_path: Path) -> None:
    text = _error(tmp_path, Workload([[coll(5)], [coll(5)], [coll(5)], [comp(1, 3)]]))
    assert "3 of 4 NPUs" in text and "rank 2: node 5" in text and "rank 3" not in text


def test_unequal_sizes_deadlock(tmp_path: Path) -> None:
    text = _error(tmp_path, Workload([[coll(5, 1 << 20)], [coll(5, 1 << 20)], [coll(5, 1 << 20)], [coll(5, 1 << 21)]]))
    assert "deadlock" in text and "rank 3: node 5 (all-reduce of 2097152 B" in text


def test_the_tag_trap_of_the_unnamed_world(tmp_path: Path) -> None:
    """Group collectives advance the world's tags: ranks outside the group no longer agree with those inside."""
    groups = {"1": [0, 1]}
    ranks = [[coll(1, group=1), coll(2, deps=[1])]] * 2 + [[coll(2)]] * 2
    assert "deadlock: 4 of 4" in _error(tmp_path, Workload(ranks, groups=groups))
    groups = {"1": [0, 1], "9": [0, 1, 2, 3]}
    ranks = [[coll(1, group=1), coll(2, deps=[1], group=9)]] * 2 + [[coll(2, group=9)]] * 2
    assert len(simulate(Workload(ranks, groups=groups).job(tmp_path / "named")).finish_ns) == 4


@pytest.mark.parametrize("other", [[], [send(1, 0, 999)], [send(1, 0, tag=2)], [send(1, 2)]])
def test_an_unmatched_receive(tmp_path: Path, other: list[Any]) -> None:
    ranks = [[recv(7, 1)], other or [comp(1, 1)], [comp(1, 1)], [comp(1, 1)]]
    text = _error(tmp_path, Workload(ranks))
    assert "1 of 4 NPUs never finish: rank 0: node 7 (receive of 4096 B from rank 1, tag 1)" in text


def test_children_of_skipped_nodes(tmp_path: Path) -> None:
    """After an INVALID node ASTRA-sim looks at its children only when something else ends."""
    assert "node 2 is ready" in _error(tmp_path, Workload(_all(node(1, 0), comp(2, 1, [1]))))
    later = Workload(_all(node(1, 0), comp(2, 1, [1]), comp(3, 5)))
    assert simulate(later.job(tmp_path / "later")).finish_ns == [6000] * 4


@pytest.mark.parametrize(
    "nodes,reason",
    [
        ([comp(1, 1, [2]), comp(2, 1, [1])], r"w\.0\.et: nodes depend on each other in a circle: 1 -> 2 -> 1"),
        ([comp(1, 1), comp(2, 1, [4]), comp(3, 1, [2]), node(4, 4, ctrl=[3])], "circle: .*2 -> 3 -> 4"),
        ([comp(1, 1, [99])], r"w\.0\.et: node 1 depends on node 99, which is not there"),
        ([comp(1, 1), comp(1, 2)], "node 1 stands there twice"),
        ([], "no nodes"),
        ([node(1, 1)], "node 1 .*METADATA"),
        ([node(1, 9)], "node 1 .*unknown node type 9"),
        ([node(1, 7, comm_size=5)], "node 1 .*comm_type is missing"),
        ([node(1, 7, comm_type=0)], "node 1 .*comm_size is missing"),
        ([node(1, 7, comm_type=9, comm_size=5)], r"comm_type 9 \(barrier\), which ASTRA-sim does not support"),
        ([node(1, 7, comm_type=77, comm_size=5)], r"comm_type 77 \(unknown\)"),
        ([node(1, 7, comm_type=0.5, comm_size=5)], "comm_type must be an integer"),
        ([node(1, 7, comm_type="0", comm_size=5)], "comm_type must be an integer"),
        ([coll(1, -5)], "comm_size must be an integer, not negative, not -5"),
        ([coll(1, 0, kind=2)], "all-gather of 0 bytes never ends"),
        ([coll(1, is_cpu_op=True)], "is_cpu_op is true on a communication node"),
        ([comp(1, 1, is_cpu_op="yes")], "is_cpu_op must be true or false, not yes"),
        ([coll(1, pg_name="world")], "pg_name must be a decimal number, not world"),
        ([coll(1, pg_name=4)], "pg_name must be a string"),
        ([coll(1, involved_dim=3)], "involved_dim must be a list of booleans"),
        ([coll(1, involved_dim=[])], "involved_dim must be a list of booleans"),
        ([node(1, 5, comm_size=5, comm_tag=1)], "comm_dst is missing"),
        ([node(1, 5, comm_size=5, comm_dst=1)], "comm_tag is missing"),
        ([send(1, 1, tag=-1)], "comm_tag must be an integer, not negative"),
        ([send(1, 1, 0)], "message of 0 bytes"),
        ([node(1, 2)], "tensor_size is missing"),
    ],
)
def test_nodes_that_cannot_be_read(tmp_path: Path, nodes: list[Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Workload(_all(*nodes)).job(tmp_path)


@pytest.mark.parametrize(
    "nodes,reason",
    [
        ([coll(3, group=7)], "rank 0, node 3: communicator group 7 is not defined"),
        ([coll(3, group=1)], "rank 2, node 3: not a member of its communicator group 1"),
        ([coll(3, group=2)], "rank 0, node 3: group 2 has one rank"),
        ([coll(3, involved_dim=[False, False])], "rank 0, node 3: involved_dim is false for every dimension"),
        ([send(3, 0)], "rank 0, node 3: a message to oneself"),
        ([send(3, 44)], "rank 0, node 3: rank 44 is not among the 4 NPUs"),
        ([send(3, 1, comm_src=2)], "rank 0, node 3: comm_src is 2, not the rank itself"),
        ([recv(3, 1, comm_dst=2)], "rank 0, node 3: comm_dst is 2, not the rank itself"),
        ([node(3, 3, tensor_size=10)], "rank 0, node 3: a memory access, but .*NO_MEMORY_EXPANSION"),
    ],
)
def test_nodes_that_cannot_be_executed(tmp_path: Path, nodes: list[Any], reason: str) -> None:
    workload = Workload(_all(*nodes), groups={"1": [0, 1], "2": [0]})
    with pytest.raises(UserError, match=reason):
        simulate(workload.job(tmp_path))


@pytest.mark.parametrize(
    "workload,reason",
    [
        (
            Workload(_all(coll(1), n=3), sizes=[3], algorithms=["halvingDoubling"]),
            "rank 0, node 1: halvingDoubling over 3 ranks",
        ),
        (Workload(_all(coll(1), n=3), sizes=[3], algorithms=["doubleBinaryTree"]), "needs a power of two"),
        (Workload(_all(coll(1, kind=6)), algorithms=["halvingDoubling"]), "halvingDoubling does not know all-to-all"),
        (Workload(_all(coll(1)), system={"all-reduce-implementation": None}), 'has no "all-reduce-implementation"'),
        (
            Workload(_all(coll(1, 3, kind=2)), system={"preferred-dataset-splits": 4}),
            "all-gather of 3 bytes in 4 chunks",
        ),
        (Workload(_all(coll(1, 4)), algorithms=["halvingDoubling"]), "a message of 0 bytes"),
        (
            Workload(_all(coll(1, involved_dim=[True])), ["Ring", "Ring"], [2, 2]),
            "involved_dim has 1 values, but there are 2",
        ),
        (
            Workload(_all(coll(1), n=8), ["Ring"] * 3, [2] * 3, system={"collective-optimization": None}),
            "collective-optimization",
        ),
        (Workload(_all(comp(1, 5, num_ops=1, tensor_size=1 << 20)), system=_FAST_ROOFLINE), "time 0"),
    ],
)
def test_systems_on_which_astra_sim_hangs_or_aborts(tmp_path: Path, workload: Workload, reason: str) -> None:
    assert reason in _error(tmp_path, workload)


@pytest.mark.parametrize(
    "sizes,topology,reason",
    [([2], ["Ring"], "Ring of 2 NPUs"), ([2, 2], ["Switch", "Switch"], "networks of one dimension, not 2")],
)
def test_networks_that_the_aware_backend_cannot_build(
    tmp_path: Path, sizes: list[int], topology: list[str], reason: str
) -> None:
    workload = Workload(_all(coll(1), n=sizes[0] * len(sizes)), topology, sizes)
    with pytest.raises(UserError, match=reason):
        workload.job(tmp_path, is_aware=True)


def test_misspelt_attributes(tmp_path: Path) -> None:
    """ASTRA-sim ignores them and simulates something else."""
    folder = Workload([[coll(5)], [coll(5)], [coll(5)], [coll(5, pg_nam="1")]]).write(tmp_path)
    with pytest.raises(UserError, match="rank 3, node 5: attribute 'pg_nam' .* is 'pg_name' meant"):
        load(inputs(folder))


def test_missing_ranks(tmp_path: Path) -> None:
    Workload(_all(coll(1))).write(tmp_path)
    (tmp_path / "w.2.et").unlink()
    with pytest.raises(UserError, match=r"no trace of rank 2 \(4 ranks needed, 3 files there\)"):
        load(inputs(tmp_path))
    (tmp_path / "w.2.et").write_bytes((tmp_path / "w.1.et").read_bytes())
    (tmp_path / "w.17.et").write_bytes(b"what nobody reads")
    assert len(load(inputs(tmp_path)).programs) == 4


def test_exit_codes_and_one_line(tmp_path: Path) -> None:
    good = Workload(_all(coll(1))).write(tmp_path / "good")
    stuck = Workload([[recv(7, 1)]] + [[comp(1, 1)]] * 3).write(tmp_path / "stuck")
    result = CliRunner().invoke(main, arguments(good, "--json"))
    assert result.exit_code == 0 and list(json.loads(result.output)["finish_ns"]) == ["0", "1", "2", "3"]
    result = CliRunner().invoke(main, arguments(stuck, "--json"))
    assert result.exit_code == 2
    assert result.output.startswith("phantora: deadlock: 1 of 4 NPUs") and result.output.count("\n") == 1


def test_mutated_traces_never_crash(tmp_path: Path) -> None:
    """Traces with random bytes changed are simulated or refused, and never anything else."""
    draw, num_refused = random.Random(3), 0
    nodes = [comp(1, 2), coll(2, 4096, [1]), send(3, 1, deps=[2]), recv(4, 0, deps=[1]), comp(5, 1, [2, 3])]
    folder = Workload([nodes[:3], [nodes[0], nodes[1], nodes[3]], nodes[:2], nodes[:2]]).write(tmp_path)
    data = framed(GlobalMetadata(version="0.0.4"), *nodes[:3])
    for _ in range(1500):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 2, 5))):
            changed[draw.randrange(len(changed))] = draw.choice((0, 1, draw.randrange(256)))
        (folder / "w.0.et").write_bytes(bytes(changed))
        try:
            simulate(load(inputs(folder)))
        except UserError:
            num_refused += 1
    assert 100 < num_refused < 1500
