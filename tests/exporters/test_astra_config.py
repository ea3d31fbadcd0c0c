"""Configurations for ASTRA-sim: dimensions as the ranks lie, and the script that runs the binary."""

import dataclasses
import json
import os
import re
import subprocess

import pytest
from made_up_run import Builder
from phantora.exporters.astra_config import Dimension, dimensions_of, write_astra_configs
from phantora.exporters.chakra import write_chakra

from phantora.cluster import PlacementSpec, load_cluster

GIB = 1 << 30


def run_on(cluster, world_size, per_node):
    b = Builder(world_size)
    b.collective("all_reduce", 1 << 20, 50.0, stream=7)
    run = b.finish()
    run.cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    run.nproc_per_node = per_node
    return run


def shape(run):
    return [(dimension.topology, dimension.num_npus) for dimension in dimensions_of(run)]


@pytest.mark.parametrize(
    "cluster,world_size,per_node,expected",
    [
        ("dgx-h100", 8, 8, [("Switch", 8)]),
        ("dgx-h100", 16, 8, [("Switch", 8), ("Switch", 2)]),
        ("dgx-h100", 8, 4, [("Switch", 4), ("Switch", 2)]),
        ("dgx-h100", 4, 1, [("Switch", 4)]),  # one rank on each node: the network alone
        ("h200-nvl", 4, 4, [("FullyConnected", 4)]),
        ("gb200-nvl72", 16, 4, [("Switch", 16)]),  # four nodes of one NVLink domain
        ("rtx3090-ethernet", 8, 4, [("Switch", 4), ("Switch", 2)]),
    ],
)
def test_dimensions_follow_the_placement(cluster, world_size, per_node, expected):
    assert shape(run_on(cluster, world_size, per_node)) == expected


def test_domains_that_are_filled_unequally_count_as_nodes():
    cluster = load_cluster("gb200-nvl72")
    wide = dataclasses.replace(cluster, num_nodes=36, placement=PlacementSpec(nodes=(0, 1, 18)))
    assert shape(run_on(wide, 12, 4)) == [("Switch", 4), ("Switch", 3)]
    even = dataclasses.replace(cluster, num_nodes=36, placement=PlacementSpec(nodes=(0, 1, 18, 19)))
    assert shape(run_on(even, 16, 4)) == [("Switch", 8), ("Switch", 2)]
    mixed = dataclasses.replace(cluster, num_nodes=36, placement=PlacementSpec(nodes=(0, 18, 1, 19)))
    assert shape(run_on(mixed, 16, 4)) == [("Switch", 4), ("Switch", 4)]


def test_rates_and_latencies():
    cluster = load_cluster("dgx-h100")
    near, far = dimensions_of(run_on("dgx-h100", 16, 8))
    assert near.bytes_per_s == cluster.intra_node.bytes_per_s * cluster.intra_node.efficiency
    assert far.bytes_per_s == pytest.approx(cluster.nic.bytes_per_s * cluster.nic.efficiency)
    assert near.latency_ns == cluster.intra_node.latency_ns < far.latency_ns
    slow = load_cluster("rtx3090-ethernet")
    shared = dimensions_of(run_on("rtx3090-ethernet", 8, 4))[1]
    assert shared.bytes_per_s == pytest.approx(slow.nic.bytes_per_s * slow.nic.efficiency / 4)  # one card for four GPUs
    mesh = dimensions_of(run_on("h200-nvl", 2, 2))[0]  # the links to the two other GPUs are not used
    nvl = load_cluster("h200-nvl").intra_node
    assert mesh.bytes_per_s == pytest.approx(nvl.bytes_per_s * nvl.efficiency / 3)


def test_files(tmp_path):
    run = run_on("dgx-h100", 16, 8)
    folder = write_chakra(run, tmp_path)
    names = [path.name for path in write_astra_configs(run, folder)]
    assert names == [
        "memory.json", "system.json", "network.yml", "system_1d.json", "network_1d.yml", "run_astra_sim.sh",
    ]  # fmt: skip
    system = json.loads((folder / "system.json").read_text())
    for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
        assert len(system[f"{kind}-implementation"]) == 2  # one per dimension, or it covers only the first
    flat = json.loads((folder / "system_1d.json").read_text())
    assert flat["all-to-all-implementation"] == ["direct1"] and flat["preferred-dataset-splits"] == 1
    network = (folder / "network.yml").read_text()
    assert "topology: [ Switch, Switch ]\nnpus_count: [ 8, 2 ]\n" in network
    bandwidth = re.search(r"bandwidth: \[ ([\d.]+), ([\d.]+) \]", network).groups()
    assert [float(b) * GIB for b in bandwidth] == pytest.approx([d.bytes_per_s for d in dimensions_of(run)], rel=1e-4)
    assert "npus_count: [ 16 ]" in (folder / "network_1d.yml").read_text()


def test_no_configurations_for_one_rank_or_an_unknown_cluster(tmp_path):
    assert write_astra_configs(run_on("dgx-h100", 1, 1), tmp_path) == []
    unknown = run_on("dgx-h100", 2, 2)
    unknown.cluster = "what was imported"
    assert write_astra_configs(unknown, tmp_path) == []


def stand_in(path, body):
    """A program in the place of ASTRA-sim's binary."""
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


_FINISHES = """for word in "$@"; do echo "$word"; done
test -f "$PWD/trace.3.et" || exit 9
for rank in 0 1 2 3; do
    echo "[workload] [info] sys[$rank] finished, 4000 cycles, exposed communication 100 cycles."
done
"""


def test_the_script_runs_the_binary_and_sees_a_deadlock(tmp_path):
    run = run_on("dgx-h100", 4, 2)
    folder = write_chakra(run, tmp_path / "run")
    write_astra_configs(run, folder)
    script = folder / "run_astra_sim.sh"
    assert os.access(script, os.X_OK)

    def result(binary, *more):
        return subprocess.run([str(script), str(binary), *more], capture_output=True, text=True, cwd=tmp_path)

    good = result(
        stand_in(tmp_path / "AstraSim_Analytical_Congestion_Unaware", _FINISHES), "--rendezvous-protocol=true"
    )
    assert good.returncode == 0, good.stderr
    assert "--network-configuration=network.yml" in good.stdout and "--rendezvous-protocol=true" in good.stdout
    relative = subprocess.run(
        [str(script), "./AstraSim_Analytical_Congestion_Unaware"], capture_output=True, text=True, cwd=tmp_path
    )
    assert relative.returncode == 0, relative.stderr
    aware = result(stand_in(tmp_path / "AstraSim_Analytical_Congestion_Aware", _FINISHES))
    assert "--network-configuration=network_1d.yml" in aware.stdout
    stuck = result(stand_in(tmp_path / "stuck", _FINISHES.replace("2 3;", "2;")))
    assert stuck.returncode == 1 and "3 of 4 NPUs finished: a deadlock" in stuck.stderr
    assert result(stand_in(tmp_path / "broken", "exit 134")).returncode == 134
    usage = subprocess.run([str(script)], capture_output=True, text=True)
    assert usage.returncode == 2 and "usage: ./run_astra_sim.sh" in usage.stderr


def test_flattening_keeps_the_number_of_npus():
    from phantora.exporters.astra_config import flattened

    flat = flattened([Dimension("Switch", 8, 400e9, 500), Dimension("Switch", 3, 50e9, 2000)])
    assert flat == Dimension("Switch", 24, 50e9, 2000)
