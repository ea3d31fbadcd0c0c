"""`phantora import`: the folder that it writes is a run like any other."""

from __future__ import annotations

import json
from pathlib import Path

import et_samples as et
import pytest
from click.testing import CliRunner, Result
from kineto_samples import collective, document, launched, written

from phantora.cli import main
from phantora.errors import UserError
from phantora.import_command import import_files


def _run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], standalone_mode=False)


def _traces(folder: Path) -> list[Path]:
    ranks = []
    for rank in (0, 1):
        events = launched("gemm", 0, 5, 40, 1) + launched(
            "ncclDevKernel_AllReduce", 10, 45, 20, 2, stream=20, **collective("allreduce", 1, [0, 1], 64)
        )
        ranks.append(document(events, rank, 2, deviceProperties=[{"name": "NVIDIA H200"}] * 2))
    return written(folder, *ranks)


def test_a_run_folder(tmp_path: Path) -> None:
    result = _run("import", "kineto", *_traces(tmp_path), "--out", tmp_path / "run")
    assert result.exception is None, repr(result.exception)
    run = tmp_path / "run"
    assert {"summary.json", "trace.pftrace", "chakra", "import_report.json"} <= {path.name for path in run.iterdir()}
    summary = json.loads((run / "summary.json").read_text())
    assert summary["virtual_ns"] == 65_000 and summary["world_size"] == 2 and summary["cluster"]["gpu"] == "NVIDIA H200"
    assert [c["kind"] for c in summary["collectives"]] == ["all_reduce"]
    assert summary["command"][:3] == ["phantora", "import", "kineto"]
    report = json.loads((run / "import_report.json").read_text())
    assert report["taken"]["kernels"]["count"] == 4 and len(report["files"]) == 2
    assert (
        "kernels of communication" in result.output and "the smallest preset with the GPU of the trace" in result.output
    )


def test_the_run_can_be_imported_again_and_replayed(tmp_path: Path) -> None:
    assert _run("import", "kineto", *_traces(tmp_path), "--out", tmp_path / "run").exception is None
    again = _run("import", "chakra", tmp_path / "run", "--out", tmp_path / "again")
    assert again.exception is None, repr(again.exception)
    first, second = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "again"))
    assert first["ranks"] == second["ranks"] and first["collectives"] == second["collectives"]
    replayed = _run("simulate", tmp_path / "run", "--json")
    assert replayed.exception is None
    assert (
        45_000 < json.loads(replayed.output)["virtual_ns"] <= 65_000
    )  # the network carries 256 bytes in less than 20 us


def test_an_execution_trace_alone_is_priced_by_the_replay(tmp_path: Path) -> None:
    paths = written(tmp_path, et.document(et.step(et.flat)))
    imported = _run("import", "pytorch-et", *paths, "--out", tmp_path / "run", "--cluster", "dgx-h100")
    assert imported.exception is None and "must be priced" in imported.output
    replayed = _run("simulate", tmp_path / "run", "--reprice", "--json")
    assert replayed.exception is None and json.loads(replayed.output)["virtual_ns"] > 1000


def test_the_cluster_must_have_room(tmp_path: Path) -> None:
    paths = written(tmp_path, *(document(launched("k", 0, 1, 1, 1), rank, 64) for rank in range(64)))
    result = _run("import", "kineto", *paths, "--out", tmp_path / "run", "--cluster", "lab-h200")
    assert isinstance(result.exception, UserError) and "the trace is of 64 ranks" in str(result.exception)
    assert not (tmp_path / "run").exists()


def test_mistakes_name_the_file_and_write_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"traceEvents": [{"ph": "X",}]}')
    result = _run("import", "kineto", bad, "--out", tmp_path / "run")
    assert isinstance(result.exception, UserError) and str(result.exception).startswith(
        f"{bad}:1: not valid JSON at character 28"
    )
    assert not (tmp_path / "run").exists()


def _partial(folder: Path) -> list[Path]:
    """Rank 0 of 2, and rank 1 that captured one collective less and a group with absent ranks."""
    ranks = []
    for rank in (0, 1):
        events = launched("gemm", 0, 5, 40, 1)
        for number in range(3 - rank):
            args = collective("allreduce", number + 1, [0, 1], 64)
            events += launched("ncclDevKernel_AllReduce", 10, 45 + 30 * number, 20, 2 + number, stream=20, **args)
        args = {**collective("allreduce", 1, [0, 1, 2, 3], 64), "Process Group Name": "5"}
        events += launched("ncclDevKernel_AllReduce", 10, 200, 20, 9, stream=30, **args)
        ranks.append(document(events, rank, 4, deviceProperties=[{"name": "NVIDIA H200"}] * 4))
    return written(folder, *ranks)


def test_some_ranks_of_a_job_can_be_replayed_and_exported(tmp_path: Path) -> None:
    assert _run("import", "kineto", *_partial(tmp_path), "--out", tmp_path / "run").exception is None
    replayed = _run("simulate", tmp_path / "run", "--json")
    assert replayed.exception is None, repr(replayed.exception)
    result = json.loads(replayed.output)
    assert result["world_size"] == 2 and 20_000 < result["virtual_ns"] <= 220_000
    assert any("2 of 4 ranks" in note for note in result["notes"])
    exported = _run("export", tmp_path / "run", "--format", "kineto", "--out", tmp_path / "kineto")
    assert exported.exception is None, repr(exported.exception)
    assert _run("import", "kineto", tmp_path / "kineto", "--out", tmp_path / "again").exception is None


def test_an_import_that_is_broken_off_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "run"
    assert _run("import", "kineto", *_traces(tmp_path), "--out", out).exception is None
    (out / "notes.txt").write_text("mine")
    (out / "chakra/trace.7.et").write_bytes(b"of an earlier run")

    def state() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}

    before = state()

    def broken(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("phantora.importers.report.ImportReport.write", broken)
        with pytest.raises(KeyboardInterrupt):
            import_files("kineto", [str(path) for path in _traces(tmp_path)], out, None)
    assert state() == before and not list(tmp_path.glob("*.part")) and not list(tmp_path.glob(".*"))
    assert _run("import", "kineto", *_traces(tmp_path), "--out", out).exception is None
    assert {str(path) for path in map(Path, before)} - set(state()) == {str(out / "chakra/trace.7.et")}


def test_a_run_is_not_written_over_itself(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert _run("import", "kineto", *_traces(tmp_path), "--out", out).exception is None
    before = (out / "chakra/trace.0.et").read_bytes()
    for words in (("simulate", out), ("simulate", out / "chakra/trace"), ("import", "chakra", out)):
        result = _run(*words, "--out", out)
        assert isinstance(result.exception, UserError) and "name another folder" in str(result.exception)
    assert (out / "chakra/trace.0.et").read_bytes() == before


# ASTRA-sim's configurations

NETWORK = "topology: [ {} ]\nnpus_count: [ {} ]\nbandwidth: [ {} ]\nlatency: [ {} ]\n"


def _astra(
    folder: Path, topology: str, npus: str, bandwidth: str, latency: str, **system: object
) -> tuple[Result, Path]:
    (folder / "network.yml").write_text(NETWORK.format(topology, npus, bandwidth, latency))
    (folder / "system.json").write_text(json.dumps({"preferred-dataset-splits": 1, **system}))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    out = folder / "cluster.toml"
    words = [
        "--system",
        folder / "system.json",
        "--network",
        folder / "network.yml",
        "--memory",
        folder / "memory.json",
    ]
    return _run("import", "astra-config", *words, "--base", "hgx-h200", "--out", out), out


def test_a_cluster_file_of_two_dimensions(tmp_path: Path) -> None:
    from phantora.cluster import load_cluster

    result, out = _astra(
        tmp_path, "Switch, Switch", "8, 4", "400.0, 50.0", "250, 501", **{"local-mem-bw": 1600, "peak-perf": 500}
    )
    assert result.exception is None, result.exception
    cluster = load_cluster(out)
    gib = 1 << 30
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.nic.count) == (4, 8, 8)
    assert cluster.intra_node.kind == "nvswitch" and cluster.intra_node.bytes_per_s == 400 * gib
    assert cluster.intra_node.latency_ns == 500 and cluster.intra_node.efficiency == 1
    assert cluster.nic.bytes_per_s == 50 * gib and cluster.nic.latency_ns + 2 * cluster.fabric.latency_ns == 1002
    assert cluster.gpu.memory_bytes_per_s == 1.6e12 and cluster.gpu.peak_flops["bfloat16"] == 5e14
    assert cluster.gpu.name == "NVIDIA H200" and "hgx-h200" in result.output and "peak-perf" in result.output


def test_a_message_takes_as_long_as_there(tmp_path: Path) -> None:
    """From GPU 0 to GPU 1, and to GPU 0 of the next node: hops x latency + bytes / bandwidth."""
    import numpy as np

    from phantora.cluster import load_cluster
    from phantora.cluster.topology import Topology

    _, out = _astra(tmp_path, "FullyConnected, Ring", "4, 2", "100.0, 25.0", "300, 700")
    cluster = load_cluster(out)
    topology = Topology(cluster)
    for target, rate, latency in ((1, 100 * (1 << 30), 300), (4, 25 * (1 << 30), 700)):
        (row,) = topology.route_matrix(np.array([0]), np.array([target]))
        links = row[row >= 0]
        assert topology.latency_ns[links].sum() == latency
        assert topology.bytes_per_s[links].min() == pytest.approx(rate)


def test_three_dimensions_become_spines(tmp_path: Path) -> None:
    from phantora.cluster import load_cluster

    result, out = _astra(tmp_path, "Ring, FullyConnected, Switch", "2, 8, 4", "200.0, 100.0, 50.0", "50, 500, 2000")
    cluster = load_cluster(out)
    assert cluster.num_nodes == 32 and cluster.fabric.hosts_per_leaf == 8
    assert cluster.fabric.oversubscription == 14 and "another latency" in result.output


@pytest.mark.parametrize(
    "network,message",
    [
        (("Switch, Switch, Switch, Switch", "2, 2, 2, 2", "1, 1, 1, 1", "1, 1, 1, 1"), "three at most"),
        (("Sphere", "8", "50", "500"), "unknown topology"),
        (("Switch", "8, 2", "50", "500"), "entries"),
    ],
)
def test_networks_that_cannot_be(tmp_path: Path, network: tuple[str, str, str, str], message: str) -> None:
    result, out = _astra(tmp_path, *network)
    assert isinstance(result.exception, UserError) and message in str(result.exception)
    assert not out.exists()
