"""Configuration files: what is read, and what is said about what is wrong."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from workloads import SYSTEM, Workload, coll, comp

from phantora.astra.config import Algorithm, Dimension, Memory, load_groups, load_memory, load_network, load_system
from phantora.astra.simulate import simulate
from phantora.errors import UserError


def _system(tmp_path: Path, num_dims: int = 1, **changes: Any) -> Any:
    path = tmp_path / "system.json"
    values = {**SYSTEM, **{key.replace("_", "-"): value for key, value in changes.items()}}
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))
    return load_system(path, num_dims)


def test_units(tmp_path: Path) -> None:
    system = _system(tmp_path, peak_perf=2, all_reduce_implementation=["direct4"], roofline_enabled=1)
    assert (system.endpoint_delay_ns, system.local_mem_bytes_per_ns, system.peak_flops) == (10, 1600, 2e12)
    assert system.algorithms == {0: (Algorithm("direct", 4),)} and system.roofline and system.is_baseline is False
    (tmp_path / "n.yml").write_text(
        "topology: [ Ring, Switch ]\nnpus_count: [ 4, 2 ] # NPUs\nbandwidth: [50.0, 1e2]\nlatency:\n  - 1.5\n  - 0\n"
    )
    assert load_network(tmp_path / "n.yml") == (
        Dimension("Ring", 4, 53.687091200, 1.5),
        Dimension("Switch", 2, 107.3741824, 0.0),
    )
    (tmp_path / "m.json").write_text('{"memory-type": "MEMORY_POOL", "remote-mem-latency": 7, "remote-mem-bw": 3}')
    memory = load_memory(tmp_path / "m.json", 8)
    assert memory == Memory(exists=True, latency_ns=7, bytes_per_s=3e9, npus_per_queue=8) and memory.access_ns(10) == 10


@pytest.mark.parametrize(
    "changes,reason",
    [
        ({"preferred_dataset_splits": "absent"}, '"preferred-dataset-splits" is missing'),
        ({"preferred_dataset_splits": 0}, '"preferred-dataset-splits" must be an integer of at least 1, not 0'),
        ({"endpoint_delay": 0}, '"endpoint-delay" must be an integer of at least 1'),
        ({"endpoint_delay": "10"}, '"endpoint-delay" must be an integer'),
        ({"active_chunks_per_dimension": 1.5}, '"active-chunks-per-dimension" must be an integer'),
        ({"collective_optimization": "localBwAware"}, "must be one of baseline, localBWAware, not localBwAware"),
        ({"scheduling_policy": "RANDOM"}, "must be one of LIFO, FIFO, EXPLICIT"),
        ({"local_mem_bw": -1}, '"local-mem-bw" must be a number'),
        ({"roofline_enabled": 1}, 'roofline-enabled needs "peak-perf" above 0'),
        ({"roofline_enabled": "yes"}, '"roofline-enabled" must be 0 or 1'),
        ({"model_shared_bus": 1}, '"model-shared-bus" is not modelled'),
        ({"track_local_mem": 1}, '"track-local-mem" is not modelled'),
        ({"all_reduce_implementation": "ring"}, '"all-reduce-implementation" must be an array of strings'),
        ({"all_reduce_implementation": ["rign"]}, r"unknown algorithm rign \(did you mean ring"),
        ({"all_reduce_implementation": ["direct0"]}, "unknown algorithm direct0"),
        ({"all_reduce_implementation": ["ring2"]}, "unknown algorithm ring2"),
        ({"all_gather_implementation": ["ring", "ring"]}, "has 2 entries, the network 1 dimensions"),
        ({"all_gather_implementation_custom": ["a", "b"]}, "must be an array of one prefix"),
        ({"per_node_custom_implementation": "nowhere.yml"}, "nowhere.yml: No such file"),
    ],
)
def test_wrong_systems(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        _system(tmp_path, **changes)


def test_unread_keys_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _system(tmp_path, endpoint_dealy=3, boost_mode=0)
    text = capsys.readouterr().err
    assert '"endpoint-dealy" is not read (did you mean endpoint-delay' in text and "boost-mode" not in text


@pytest.mark.parametrize(
    "text,reason",
    [("{", "line 1: not JSON"), ("[]", "must hold a JSON object"), ("{\n'a': 1}", "line 2"), ('{"a": NaN}', "NaN")],
)
def test_malformed_json(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "s.json").write_text(text)
    with pytest.raises(UserError, match=f"s.json: .*{reason}"):
        load_system(tmp_path / "s.json", 1)


_NETWORK = "topology: [ Ring ]\nnpus_count: [ 4 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"


@pytest.mark.parametrize(
    "old,new,reason",
    [
        ("[ 4 ]", "[ 1 ]", "line 2: npus_count must be an integer from 2 on, not 1"),
        ("[ 4 ]", "[ 4, 2 ]", "line 2: npus_count has 2 entries, topology 1"),
        ("[ 4 ]", "4", "npus_count must be a list"),
        ("[ 4 ]", "[ [4] ]", "line 2: npus_count must be a value or a list of values"),
        ("[ 4 ]", "[ four ]", "line 2: npus_count must be an integer"),
        ("[ 4 ]", "[ 4", "line [23]: not YAML"),
        ("50.0", "0", "line 3: bandwidth must be a number above 0"),
        ("50.0", ".inf", "line 3: bandwidth must be a number above 0"),
        ("500.0", "-1", "line 4: latency must be a number, not negative"),
        ("Ring", "Rign", r"line 1: unknown topology Rign \(did you mean Ring"),
        ("latency", "bandwidth", "line 4: bandwidth stands there twice"),
        ("latency: [ 500.0 ]\n", "", "latency must be a list"),
        ("[ 4 ]", "[ 1048577 ]", "npus_count must be an integer"),
        (_NETWORK, "- 1\n", "must hold a YAML mapping"),
        (_NETWORK, "\x01", "not YAML"),
        (_NETWORK, "[" * 5000, "not YAML"),
    ],
)
def test_wrong_networks(tmp_path: Path, old: str, new: str, reason: str) -> None:
    (tmp_path / "n.yml").write_text(_NETWORK.replace(old, new))
    with pytest.raises(UserError, match=f"n.yml: .*{reason}"):
        load_network(tmp_path / "n.yml")


@pytest.mark.parametrize(
    "text,reason",
    [
        ("{}", '"memory-type" is missing'),
        ('{"memory-type": "POOL"}', "must be one of NO_MEMORY_EXPANSION"),
        ('{"memory-type": "MEMORY_POOL"}', '"remote-mem-bw" is missing'),
        ('{"memory-type": "MEMORY_POOL", "remote-mem-bw": 0}', '"remote-mem-bw" must be above 0'),
        (
            '{"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-bw": 1, "num-nodes": 1, "num-npus-per-node": 2}',
            "less than the 4 NPUs",
        ),
    ],
)
def test_wrong_memories(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(UserError, match=f"m.json: .*{reason}"):
        load_memory(tmp_path / "m.json", 4)


def test_a_memory_of_more_nodes_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = '"memory-type": "PER_NODE_MEMORY_EXPANSION", "remote-mem-bw": 1, "num-npus-per-node": 2'
    for num_nodes, note in ((2, ""), (3, "(3 x 2) is more than the 4 NPUs")):
        (tmp_path / "m.json").write_text(f'{{{kind}, "num-nodes": {num_nodes}}}')
        assert load_memory(tmp_path / "m.json", 4).npus_per_queue == 2
        said = capsys.readouterr().err
        assert note in said and bool(said) == bool(note)


@pytest.mark.parametrize(
    "text,reason",
    [
        ('{"0": [0]}', "a group is called by a positive integer"),
        ('{"tp": [0]}', "a group is called by a positive integer"),
        ('{"1": []}', "must list ranks from 0 to 3"),
        ('{"1": [0, 4]}', "must list ranks from 0 to 3"),
        ('{"1": [true]}', "must list ranks from 0 to 3"),
        ('{"1": [0, 0]}', "lists a rank twice"),
        ('{"1": [0], "01": [1]}', "group 1 stands there twice"),
    ],
)
def test_wrong_groups(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "g.json").write_text(text)
    with pytest.raises(UserError, match=f"g.json: .*{reason}"):
        load_groups(tmp_path / "g.json", 4)


def test_fewer_algorithms_than_dimensions_cover_the_first_ones(tmp_path: Path) -> None:
    whole = Workload([[coll(1)]] * 8, ["Ring", "Ring"], [4, 2], algorithms=["ring"])
    part = Workload([[coll(1, involved_dim=[True, False])]] * 8, ["Ring", "Ring"], [4, 2])
    assert simulate(whole.job(tmp_path / "a")).finish_ns == simulate(part.job(tmp_path / "b")).finish_ns


def test_injection_scale(tmp_path: Path) -> None:
    one = Workload([[coll(1)]] * 4, system={"endpoint-delay": 30}).job(tmp_path / "a")
    other = Workload([[coll(1)]] * 4, system={"endpoint-delay": 20}).job(tmp_path / "b", injection_scale=1.5)
    assert simulate(one).finish_ns == simulate(other).finish_ns


def test_mutated_configurations_are_read_or_refused(tmp_path: Path) -> None:
    """2,000 of each kind: never anything but a configuration or a UserError."""
    draw = random.Random(5)
    folder = Workload([[comp(1, 1)]] * 4, groups={"1": [0, 1], "2": [2, 3]}).write(tmp_path)
    readers = {
        "system.json": lambda path: load_system(path, 1), "network.yml": load_network,
        "memory.json": lambda path: load_memory(path, 4), "groups.json": lambda path: load_groups(path, 4),
    }  # fmt: skip
    for name, read in readers.items():
        data, num_refused = (folder / name).read_bytes(), 0
        for _ in range(2000):
            changed = bytearray(data)
            for _ in range(draw.choice((1, 2, 4))):
                at = draw.randrange(len(changed))
                changed[at : at + draw.choice((0, 1, 3))] = bytes(
                    draw.choice(b'[]{}":,-0169 \n\t&*!%@#eE.\xff') for _ in range(draw.choice((0, 1, 3)))
                )
            path = tmp_path / f"changed-{name}"
            path.write_bytes(bytes(changed))
            try:
                read(path)
            except UserError as error:
                num_refused += 1
                assert str(path) in str(error)
        assert num_refused > 300, name
