"""No value of a cluster file gives anything but a cluster that can be simulated or one line of complaint."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path

import pytest

from phantora.cluster import Placement, load_cluster, spec
from phantora.cluster.bounds import MAX_GPUS, check_bounds
from phantora.errors import UserError
from phantora.network.nccl_tests import run_sweep

EXTREMES = [
    "0", "-1", "1", "1e-300", "-1e300", "1e300", "1e25", "inf", "-inf", "nan", "9223372036854775807", "2000000000",
    "1" + "0" * 400, "0.5", '"text"', "true", "[]", "[1.5]", "{}",
]  # fmt: skip
TABLES = {
    "": spec.Cluster, "gpu": spec.GpuSpec, "host": spec.HostSpec, "intra_node": spec.IntraNodeSpec, "nic": spec.NicSpec,
    "fabric": spec.FabricSpec, "jitter": spec.JitterSpec, "placement": spec.PlacementSpec,
}  # fmt: skip
KEYS = [(table, field.name) for table, kind in TABLES.items() for field in dataclasses.fields(kind)]


def outcome(tmp_path: Path, text: str) -> None:
    """Load the file and run something on it: UserError of one line, or times that are positive."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for num_nodes, num_gpus in ((1, 2), (2, 1)):
        try:
            cluster = load_cluster(path)
            rows = run_sweep(Placement(cluster, num_nodes, num_gpus), "all_reduce", [1024, 2**24])
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
        else:
            assert all(0 < row.time_us < 1e12 for row in rows)


@pytest.mark.parametrize(("table", "key"), KEYS)
def test_extreme_values(tmp_path: Path, table: str, key: str) -> None:
    for value in EXTREMES:
        if table:
            outcome(tmp_path, f'base = "dgx-h100"\n[{table}]\n{key} = {value}\n')
        else:
            outcome(tmp_path, f'base = "dgx-h100"\n{key} = {value}\n')


@pytest.mark.parametrize("key", ["factor", "from_s", "until_s", "link"])
@pytest.mark.parametrize("factor", ["0", "0.5"])
def test_extreme_faults(tmp_path: Path, key: str, factor: str) -> None:
    plain = {"link": '"node0.gpu0->nvswitch"', "factor": factor, "until_s": "1.0"}
    for value in EXTREMES:
        keys = "".join(f"{name} = {text}\n" for name, text in {**plain, key: value}.items())
        outcome(tmp_path, f'base = "dgx-h100"\n[[fault]]\n{keys}')


@pytest.mark.parametrize(
    "text",
    [
        "[nic]\nefficiency = 1e-300\n",
        "[fabric]\noversubscription = inf\nhosts_per_leaf = 1\n",
        "[fabric]\noversubscription = 1e300\nhosts_per_leaf = 1\n",
        "[fabric]\nnum_spines = 1000000000\n",
        "[gpu]\nname = \"a\\u001b[31m\"\n",
    ],
)
def test_values_that_broke_together(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "dgx-h100"\n{text}')
    with pytest.raises(UserError, match=r"mine.toml:\d+: table \[\w+\]: \w+ must be"):
        load_cluster(path)


def test_lists_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("a = " + "[" * 3000 + "]" * 3000)
    with pytest.raises(UserError, match="nested too deeply|not valid TOML|unknown key"):
        load_cluster(path)


def test_the_largest_cluster_is_no_burden(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'base = "dgx-h100"\nnum_nodes = {MAX_GPUS // 8}\n')
    assert Placement(load_cluster(path), 1, 8).num_cluster_nodes == 1
    path.write_text(f'base = "dgx-h100"\nnum_nodes = {MAX_GPUS // 8 + 1}\n')
    with pytest.raises(UserError, match="must be at most 1048576 GPUs"):
        load_cluster(path)


def test_a_bound_goes_by_the_unit_in_the_name() -> None:
    @dataclasses.dataclass
    class Some:
        made_up_ns: typing.Any = 10**11

    with pytest.raises(ValueError, match="made_up_ns must be between 0 and 10000000000, not 100000000000"):
        check_bounds(Some())
