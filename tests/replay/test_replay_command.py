"""`phantora simulate` without --astra-*: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_builder import CLUSTER, MIB, RunBuilder

from phantora.exporters.chakra import write_chakra
from phantora.importers.chakra import read
from phantora.replay import replay
from phantora.trace.model import Run


def simulate(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phantora.cli", "simulate", *map(str, args)], capture_output=True, text=True, timeout=120
    )


def recorded(num_ranks: int = 2) -> Run:
    b = RunBuilder(num_ranks, are_measured=True)
    world = b.group("world", tuple(range(num_ranks)))
    for k in range(3):
        b.collective(world, size_bytes=8 * MIB)
    for rank in range(num_ranks):
        for k in range(3):
            b.kernel(rank, 10_000 * (k + 1), 20_000)
            b.launch(rank, 10_000 * (k + 1) + 500, (k,))
        b.run.ranks[rank].mark_name = ["optimizer.step"] * 3
        for time_ns in (1_000, 20_000, 50_000):
            b.run.ranks[rank].mark_ns.append(time_ns)
            b.run.ranks[rank].mark_depth.append(0)
        b.run.ranks[rank].host_end_ns = 60_000
        b.run.ranks[rank].exit_code = 0
    run = replay(b.run, CLUSTER)
    run.source = "recorded"
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_chakra(recorded(), tmp_path / "run")
    return tmp_path / "run"


def test_json_of_a_run_on_its_own_cluster(folder):
    run, done = recorded(), simulate(folder, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["virtual_ns"] == run.virtual_ns
    assert result["finish_ns"] == {"0": max(run.ranks[0].end_ns), "1": max(run.ranks[1].end_ns)}
    assert [step["duration_ns"] for step in result["steps"]] == [19_000, 30_000]
    assert result["cluster"]["name"] == "dgx-h100"


def test_the_table_and_no_torch(folder):
    done = simulate(folder / "chakra" / "trace", "--cluster", "hgx-h200")
    assert done.returncode == 0 and "on 2 ranks of hgx-h200" in done.stdout and "all_reduce" in done.stdout
    code = "import sys; from phantora.cli import main; main(sys.argv[1:], standalone_mode=False); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, "simulate", str(folder)], check=True, capture_output=True)


def test_out_is_a_run_that_can_be_simulated_again(folder, tmp_path):
    done = simulate(folder, "--cluster", "hgx-h200", "--out", tmp_path / "new")
    assert done.returncode == 0 and "summary" in done.stdout, done.stderr
    assert {path.name for path in (tmp_path / "new").iterdir()} >= {"chakra", "summary.json", "trace.pftrace"}
    run, _ = read(tmp_path / "new")
    assert run.source == "replayed" and run.cluster.name == "hgx-h200" and run.command[0] == "phantora"
    again = json.loads(simulate(tmp_path / "new", "--json").stdout)
    assert again["virtual_ns"] == run.virtual_ns


@pytest.mark.parametrize(
    "args,message",
    [
        (("--cluster", "lab-h200"), "lab-h200 has 1 GPUs (1 x 1), the run has 2 ranks"),
        (("--cluster", "nowhere"), "unknown cluster 'nowhere'"),
        (("--nproc-per-node", "3"), "--nproc-per-node 3: the run has 2 ranks"),
        (("--contention", "fast"), "--contention fast: not two numbers"),
        (("--prices", "x"), "--prices needs --reprice"),
        (("--reprice", "--prices", "x"), "there is no price table x"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(folder, args, message):
    done = simulate(folder, *args)
    assert done.returncode == 2 and done.stderr.startswith("phantora: ") and message in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def test_fewer_ranks_than_recorded(folder):
    (folder / "chakra" / "trace.1.et").unlink()
    done = simulate(folder, "--json")
    assert done.returncode == 2 and "the run has 2 ranks, but there are 1 files" in done.stderr


def test_traces_of_others_need_a_cluster(tmp_path):
    run = recorded()
    folder = write_chakra(run, tmp_path)
    data = (folder / "trace.0.et").read_bytes()
    (folder / "trace.0.et").write_bytes(data.replace(b"op0", b"xx0"))
    done = simulate(folder / "trace")
    assert (
        done.returncode == 2
        and "does not say on which cluster it ran: --cluster NAME|FILE.toml is needed" in done.stderr
    )
    done = simulate(folder / "trace", "--cluster", "dgx-h100", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["virtual_ns"] == pytest.approx(run.virtual_ns, rel=0.2)
    assert any(note.startswith("guessed: ") or "left out" in note for note in json.loads(done.stdout)["notes"])
