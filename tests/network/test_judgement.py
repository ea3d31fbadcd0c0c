"""The tuner's table of two H200s as NCCL 2.28.9 printed it (validation/data/h200x2/choices.json), and what follows."""

from __future__ import annotations

import dataclasses

import pytest

from phantora.cluster import Placement, load_cluster
from phantora.network import CommOperation, NetworkSimulator
from phantora.network.judgement import Judge

TWO_H200 = Judge(
    num_ranks=2, num_nodes=1, compute_capability=(9, 0), near="nvlink", near_rate=360.0, num_cards=1, card_rate=1.0,
    net_latency_ns=0, cpu="intel", channel_share=1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("algorithm", "protocol", "latency_us", "rate"),
    [("ring", "LL", 7.8, 141.0), ("ring", "LL128", 17.8, 331.2), ("ring", "Simple", 15.2, 360.0)],
)
def test_all_reduce_as_logged(algorithm: str, protocol: str, latency_us: float, rate: float) -> None:
    judged = TWO_H200.all_reduce(algorithm, protocol)  # type: ignore[arg-type]
    assert judged.latency_ns / 1000 == pytest.approx(latency_us - 2.2, abs=0.05)  # 2.2: what a kernel needs less
    assert 1 / judged.ns_per_byte == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("protocol", "rate"), [("LL", 282.0), ("LL128", 662.4), ("Simple", 720.0)])
def test_all_gather_as_logged(protocol: str, rate: float) -> None:
    assert 1 / TWO_H200.gather("ring", protocol).ns_per_byte == pytest.approx(rate, rel=1e-3)  # type: ignore[arg-type]


def test_nvls_of_one_hopper_node() -> None:
    judge = dataclasses.replace(TWO_H200, num_ranks=8, near_rate=370.8)
    # 0.85 x 8 heads x 370.8 / 9 x 7/8, both halves at once, over 2 x 7/8 of the bytes
    assert 1 / judge.all_reduce("nvls", "Simple").ns_per_byte == pytest.approx(0.85 * 370.8 * 8 / 9, rel=1e-6)


def label(preset: str, num_nodes: int, num_bytes: int) -> str:
    cluster = dataclasses.replace(load_cluster(preset), num_nodes=num_nodes)
    placement = Placement(cluster, num_nodes, 8)
    network = NetworkSimulator(cluster, placement)
    network.begin(0, CommOperation(kind="all_reduce", ranks=tuple(range(placement.world_size)), bytes=num_bytes), 0)
    return network.algorithm(0)


def test_choices_that_nccl_was_seen_to_make() -> None:
    # NVIDIA/nccl-tests#309: one node of H100s, ring and LL to 1 MiB, NVLS from 2 MiB on
    assert label("dgx-h100", 1, 1 << 20) == "ring/LL"
    assert label("dgx-h100", 1, 16 << 20) == "nvls/Simple"
    # NVIDIA/nccl#1752: 64 nodes of H200s, tree with LL128 at 16 MiB, later an NVLS tree
    assert label("hgx-h200", 64, 16 << 20) == "tree/LL128"
    assert label("hgx-h200", 64, 256 << 20) == "nvls_tree/Simple"


@pytest.mark.parametrize("cpu", ["intel", "amd", "arm"])
def test_ll_between_nodes_is_bound_by_the_cpu(cpu: str) -> None:
    judge = dataclasses.replace(TWO_H200, num_ranks=16, num_nodes=2, num_cards=8, card_rate=48.5, cpu=cpu)
    most = {"intel": 39.0, "arm": 39.0, "amd": 22.5}[cpu]
    assert 30 / 16 * 1 / judge.all_reduce("ring", "LL").ns_per_byte == pytest.approx(most)
