"""Cluster files: presets load, and every mistake is one line that says where and what."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phantora.cluster import list_clusters, load_cluster
from phantora.cluster.describe import cluster_table, describe_cluster
from phantora.cluster.loader import PRESETS
from phantora.cluster.svg import cluster_svg
from phantora.errors import UserError

EXPECTED = [
    "dgx-a100-40g", "dgx-a100-80g", "dgx-b200", "dgx-h100", "gb200-nvl72", "grand-teton-h100", "h200-nvl", "hgx-h200",
    "lab-h200", "lab-h200x2", "p4d", "p4de", "p5", "rtx3090-ethernet",
]  # fmt: skip


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load_cluster(path)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_units_of_host_time_have_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, 'base = "lab-h200"\n[host.unit_ns]\nview = [1, 2]\n')
    assert load_cluster(path).host.unit_ns["view"] == (1, 2)
    assert load_cluster(path).host.unit_ns["module"] == load_cluster("lab-h200").host.unit_ns["module"]
    assert "nearest" not in complaint(write(tmp_path, 'base = "lab-h200"\n[host.unit_ns]\nviews = [1, 2]\n'))


def test_the_presets_are_there() -> None:
    assert list_clusters() == EXPECTED


@pytest.mark.parametrize("name", EXPECTED)
def test_every_preset_loads_and_is_described(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.gpu.name in describe_cluster(cluster)
    assert name in cluster_table()


@pytest.mark.parametrize("path", sorted(PRESETS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_figure_of_the_gpu_has_a_source(path: Path) -> None:
    table = ""
    for line in path.read_text().splitlines():
        if line.startswith("["):
            table = line.split("]")[0] + "]" if "#" not in line else "sourced as a whole"
        elif "=" in line.split("#")[0] and table == "[gpu]":
            assert "#" in line, f"{path.name}: {line}"


def test_figures_of_the_h200() -> None:
    gpu = load_cluster("lab-h200").gpu
    assert (gpu.name, gpu.compute_capability, gpu.num_sms) == ("NVIDIA H200", (9, 0), 132)
    assert gpu.memory_bytes == 143_771 * 2**20
    assert gpu.shared_memory_per_block_optin_bytes == 227 * 1024
    assert gpu.peak_flops["bfloat16"] == 989.4e12


def test_a_file_states_only_what_differs(tmp_path: Path) -> None:
    cluster = load_cluster(write(tmp_path, 'base = "dgx-h100"\nnum_nodes = 256\n[nic]\nbytes_per_s = 100e9\n'))
    assert (cluster.name, cluster.num_nodes, cluster.nic.bytes_per_s) == ("mine", 256, 100e9)
    assert cluster.nic.count == load_cluster("dgx-h100").nic.count


def test_relative_path_and_base_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'base = "dgx-h100"\nnum_nodes = 3\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.toml").write_text('base = "../mine.toml"\ngpus_per_node = 4\n')
    monkeypatch.chdir(tmp_path)
    cluster = load_cluster("sub/other.toml")
    assert (cluster.num_nodes, cluster.gpus_per_node) == (3, 4)


def test_faults_stragglers_and_jitter(tmp_path: Path) -> None:
    text = '''base = "dgx-h100"
[[fault]]
link = "node0.nic1->fabric"
factor = 0.5
[[fault]]
link = "leaf0->spine*"
factor = 0
from_s = 1.0
until_s = 2.0
[[straggler]]
rank = 3
factor = 1.2
[[straggler]]
node = 1
factor = 2
what = "host"
[jitter]
relative = 0.02
seed = 7
'''
    cluster = load_cluster(write(tmp_path, text))
    faults = [(fault.factor, fault.from_s, fault.until_s) for fault in cluster.fault]
    assert faults == [(0.5, 0.0, math.inf), (0.0, 1.0, 2.0)]
    stragglers = [(s.rank, s.node, s.factor, s.what) for s in cluster.straggler]
    assert stragglers == [(3, -1, 1.2, "gpu"), (-1, 1, 2.0, "host")]
    assert (cluster.jitter.relative, cluster.jitter.seed) == (0.02, 7)
    described = describe_cluster(cluster)
    assert "leaf0->spine*" in described and "rank 3" in described and "seed 7" in described


@pytest.mark.parametrize("name", EXPECTED)
def test_every_preset_is_drawn(name: str) -> None:
    drawing = ElementTree.fromstring(cluster_svg(load_cluster(name)))
    assert any("GPU 0" == text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("name", EXPECTED)
def test_no_label_is_wider_than_its_box(name: str) -> None:
    drawing = ElementTree.fromstring(cluster_svg(load_cluster(name)))
    items = [item for item in drawing.iter() if item.tag.rpartition("}")[2] in ("rect", "text")]
    for box, text in zip(items, items[1:]):
        if box.tag.endswith("rect") and text.get("text-anchor") == "middle":
            assert len(text.text or "") * 6.2 <= float(box.get("width", 0)) or text.get("textLength")


def test_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown cluster 'dgx-h10'.*did you mean.*dgx-h100"):
        load_cluster("dgx-h10")


def test_absent_file_and_folder(tmp_path: Path) -> None:
    assert complaint(tmp_path / "none.toml").endswith("no such cluster file")
    assert complaint(tmp_path).endswith("is a folder, not a cluster file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base = "dgx-h100"\n[gpu]\n\nnum_sm = 3\n', ":4: unknown key 'num_sm' in table [gpu] (did you mean num_sms"),
        ('base = "dgx-h100"\n[nics]\ncount = 3\n', ":2: unknown key 'nics' in the top level (did you mean nic"),
        ('base = "dgx-h100"\nnic.cuont = 3\n', ":2: unknown key 'cuont' in table [nic] (did you mean count"),
        ('base = "dgx-h100"\n[gpu]\nnum_sms = "many"\n', ":3: table [gpu]: num_sms must be a whole number, not the"),
        ('base = "dgx-h100"\n[gpu]\nnum_sms = 1.5\n', ":3: table [gpu]: num_sms must be a whole number, not 1.5"),
        ('base = "dgx-h100"\nnum_nodes = true\n', ":2: the top level: num_nodes must be a whole number, not true"),
        ('base = "dgx-h100"\n[gpu]\ncompute_capability = [9]\n', ":3: table [gpu]: compute_capability must be a list"),
        ('base = "dgx-h100"\nnum_nodes = 0\n', ":2: the top level: num_nodes must be greater than 0, not 0"),
        ('base = "dgx-h100"\n[nic]\ncount = 3\n', ":3: the top level: nic.count (3) and gpus_per_node (8) must divide"),
        ('base = "dgx-h100"\n[fabric]\nkind = "fat-tre"\n', ":3: table [fabric]: kind cannot be 'fat-tre' (did"),
        ('base = "dgx-h100"\n[host.launch_ns]\ngem = [1, 2]\n', "launch_ns has unknown class gem"),
        ('base = "dgx-h100"\n[gpu.peak_flops]\nfloat4 = 1e12\n', "peak_flops has unknown dtype float4"),
        ('base = "dgx-h100"\ngpu = 3\n', ":2: gpu must be a table, not 3"),
        ('base = "dgx-h100"\n[[fault]]\nlink = "a"\nfactor = 2.0\n', ":4: table 1 of [[fault]]: factor must be"),
        ('base = "dgx-h100"\n[[fault]]\nlink = "a"\nfactor = 0\n', ":2: table 1 of [[fault]]: until_s must be given"),
        ('base = "dgx-h100"\n[[straggler]]\nrnk = 1\n', ":3: unknown key 'rnk' in table 1 of [[straggler]] (did you"),
        ('base = "dgx-h100"\n[[straggler]]\nfactor = 2.0\n', "table 1 of [[straggler]]: rank or node must be given"),
        ('base = "dgx-h100"\n[straggler]\nfactor = 2.0\n', ":2: the top level: straggler must be a list of tables"),
        ('base = "dgx-h100"\n[placement]\nnodes = 3\n', ":3: table [placement]: nodes must be a list of whole numbers"),
        ('base = "dgx-h100"\n[placement]\nnodes = [1.5]\n', ":3: table [placement]: item 1 of nodes must be a whole"),
        ('base = "dgx-h100"\n[fabric]\nrouting = "ecpm"\n', ":3: table [fabric]: routing cannot be 'ecpm' (did you"),
        ('base = "dgx-h100"\n[host]\ncpu = "via"\n', ":3: table [host]: cpu cannot be 'via'"),
        (
            'base = "dgx-h100"\n[[fault]]\nfactor = 0.5\nlink = "node99.nic0->fabric"\n',
            ":4: table 1 of [[fault]]: no link is called 'node99.nic0->fabric' (did you mean node",
        ),
        ('base = "dgx-h100"\n[jitter]\nrelative = 1.5\n', ":3: table [jitter]: relative must be in [0, 1)"),
        ('base = "dgx-h10"\n', ":1: base: unknown cluster 'dgx-h10' (did you mean"),
        ('base = 3\n', ":1: base must be a string, not 3"),
        ('base = "mine.toml"\n', ":1: base = \"mine.toml\" leads back to this file"),
        ("num_nodes = 1\n", ":1: missing key 'gpus_per_node' in the top level"),
        ("num_nodes = 1\ngpus_per_node = 1\nhost = {}\n[intra_node]\nkind = 'none'\n[gpu]\n", "missing key"),
        ("num_nodes = = 1\n", ":1: not valid TOML"),
        ('base = "dgx-h100"\n[gpu\n', ":2: not valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert message in complaint(write(tmp_path, text))


def test_missing_key_of_a_table_points_at_the_table(tmp_path: Path) -> None:
    text = "num_nodes = 1\ngpus_per_node = 1\n\n[gpu]\nname = 'x'\n[host]\n[intra_node]\nkind = 'none'\n"
    assert complaint(write(tmp_path, text)) == ":4: missing key 'compute_capability' in table [gpu]"
