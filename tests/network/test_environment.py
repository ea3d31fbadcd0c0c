"""NCCL's environment variables: read as NCCL reads them, and obeyed."""

from __future__ import annotations

import pytest

from phantora.cluster import Placement, load_cluster
from phantora.errors import UserError
from phantora.network import CommOperation, NetworkSimulator, exclusive_ns
from phantora.network.environment import NcclEnvironment
from phantora.network.nccl_tests import run_sweep
from tiny_clusters import tiny, whole

GB = 10**9


def label(environment: dict[str, str], kind: str = "all_reduce", num_bytes: int = GB, preset: str = "dgx-h100") -> str:
    network = NetworkSimulator(load_cluster(preset), whole(load_cluster(preset)), environment)
    network.begin(0, CommOperation(kind=kind, ranks=tuple(range(8)), bytes=num_bytes), 0)  # type: ignore[arg-type]
    return network.algorithm(0)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "nvls/Simple"),
        ({"NCCL_ALGO": "Ring"}, "ring/Simple"),
        ({"NCCL_ALGO": "ring,tree", "NCCL_PROTO": "LL"}, "ring/LL"),
        ({"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL128"}, "tree/LL128"),
        ({"NCCL_ALGO": "^NVLS"}, "ring/Simple"),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_PROTO": "^Simple"}, "ring/LL128"),
        ({"NCCL_ALGO": "allreduce:tree;allgather:ring"}, "tree/Simple"),
        ({"NCCL_ALGO": "broadcast:ring"}, "nvls/Simple"),
        ({"NCCL_ALGO": "NVLSTree"}, "nvls/Simple"),  # on one node
        ({"NCCL_ALGO": "CollnetDirect"}, "ring/Simple"),  # nothing possible is left: a ring, the protocols kept
        ({"NCCL_ALGO": "CollnetDirect", "NCCL_PROTO": "LL"}, "ring/LL"),
        ({"NCCL_ALGO": "PAT", "NCCL_PROTO": "LL128"}, "ring/LL128"),
    ],
)
def test_choices_are_obeyed(environment: dict[str, str], expected: str) -> None:
    assert label(environment) == expected


def test_the_tuner_gives_up_ll_early_on_ampere() -> None:
    # it takes LL for a quarter of the rate: LL would be the faster one at 2 MiB
    assert label({}, num_bytes=2 << 20, preset="dgx-a100-80g") == "ring/LL128"
    assert label({}, num_bytes=1 << 20, preset="dgx-a100-80g") == "ring/LL"


def test_other_collectives() -> None:
    assert label({"NCCL_ALGO": "NVLS"}, "all_gather") == "nvls/Simple"
    assert label({"NCCL_PROTO": "LL"}, "reduce_scatter") == "ring/LL"
    assert label({"NCCL_ALGO": "Tree", "NCCL_PROTO": "LL"}, "all_to_all").startswith("direct/")


@pytest.mark.parametrize(
    "environment", [{"NCCL_ALGO": "CollnetDirect", "NCCL_PROTO": "Simple"}, {"NCCL_ALGO": "PAT"}, {"NCCL_PROTO": "LL128"}]
)
def test_nccl_tests_refuses_a_choice_that_leaves_nothing(environment: dict[str, str]) -> None:
    placement = Placement(load_cluster("p4d"), 2, 8)  # Simple only between nodes
    with pytest.raises(UserError, match=f"{next(iter(environment))}=.*: leaves nothing for all_reduce of 16 GPUs"):
        run_sweep(placement, "all_reduce", [2**20], environment=environment)


@pytest.mark.parametrize("environment", [{"NCCL_MAX_NCHANNELS": "6"}, {"NCCL_MAX_CTAS": "6"}])
def test_fewer_channels_carry_less(environment: dict[str, str]) -> None:
    # twelve channels fill the links: six carry half
    operation = CommOperation(kind="broadcast", ranks=(0, 1, 2, 3), bytes=10 * GB)
    alone, limited = (exclusive_ns(tiny(), whole(tiny()), operation, env) for env in ({}, environment))
    assert limited == pytest.approx(2 * alone, rel=1e-3)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NCCL_ALGO": "rinng"}, "NCCL_ALGO=rinng: unknown 'rinng' (did you mean ring"),
        ({"NCCL_PROTO": "LL256"}, "NCCL_PROTO=LL256: unknown 'll256'"),
        ({"NCCL_ALGO": "allreduc:ring"}, "unknown collective 'allreduc' (did you mean allreduce"),
        ({"NCCL_MAX_NCHANNELS": "many"}, "NCCL_MAX_NCHANNELS=many: must be a whole number"),
        ({"NCCL_MAX_NCHANNELS": "--5"}, "NCCL_MAX_NCHANNELS=--5: must be a whole number"),
        ({"NCCL_MAX_NCHANNELS": "\u00b2"}, "must be a whole number"),
    ],
)
def test_mistakes_name_the_variable(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        NcclEnvironment.read(environment)
    assert message in str(caught.value)


def test_the_process_is_asked_only_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert label({}) == "nvls/Simple"
    assert NcclEnvironment.read().allows("all_reduce", "tree", "LL")
    assert not NcclEnvironment.read().allows("all_reduce", "ring", "LL")
