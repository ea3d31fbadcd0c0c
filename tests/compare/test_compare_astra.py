"""Against ASTRA-sim: closed forms of single collectives, totals, a binary that is there or is not."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from phantora.exporters.astra_config import dimensions_of, write_astra_configs
from phantora.exporters.chakra import write_chakra

from phantora.cluster import load_cluster
from phantora.compare.astra import AstraSim, compare_astra
from phantora.compare.command import compare
from phantora.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_run import MM, Builder, made_up_run  # noqa: E402

GIB_PER_S = (1 << 30) / 1e9  # ASTRA-sim's GB/s in bytes per ns


def recorded(builder_or_run, tmp_path, cluster="dgx-h100", per_node=None):
    """(run, folder of the run)"""
    run = builder_or_run.finish() if isinstance(builder_or_run, Builder) else builder_or_run
    run.cluster, run.nproc_per_node = load_cluster(cluster), per_node or run.world_size
    for info in run.collectives:
        info.algorithm = "ring/LL128"
    write_astra_configs(run, write_chakra(run, tmp_path))
    return run, tmp_path


def builtin(aware=False):
    return AstraSim.of(None, aware, 60)


def line(comparison, name):
    return next(line for line in comparison.lines if line.name.startswith(name))


def test_a_single_collective_takes_what_the_closed_form_says(tmp_path):
    """Ring all-reduce on a switch, no congestion: d + 2(n-1)(tau + d) + (n-1) pi, as ASTRA-sim's source has it."""
    n, size, d = 8, 8 << 20, 10
    b = Builder(n)
    for _ in range(3):
        b.collective("all_reduce", size, 100.0, stream=7)
    run, folder = recorded(b, tmp_path)
    [dimension] = dimensions_of(run)
    network = (folder / "chakra" / "network.yml").read_text()
    bandwidth = float(re.search(r"bandwidth: \[ ([\d.]+)", network).group(1)) * GIB_PER_S
    m = size // n
    tau = int(2 * dimension.latency_ns / 2 + m / bandwidth)
    pi = 3 * int(m / round(run.cluster.gpu.memory_bytes_per_s / 1e9))
    found = line(compare_astra(run, folder / "chakra", builtin()), "all_reduce, 8 ranks, 8 MiB")
    assert found.count == 3 and found.ours_ns == 300_000
    assert found.theirs_ns == 3 * (d + 2 * (n - 1) * (tau + d) + (n - 1) * pi)


def test_totals_and_classes(tmp_path):
    run, folder = recorded(made_up_run(), tmp_path, per_node=2)
    comparison = compare_astra(run, folder / "chakra", builtin())
    last = line(comparison, "last rank ends")
    assert last.ours_ns == run.virtual_ns and abs(last.difference) < 0.5
    classes = [line for line in comparison.lines if line.section.startswith("Collectives")]
    assert [found.name.split(",")[0] for found in classes] == [
        "all_gather",
        "all_reduce",
        "reduce_scatter",
        "all collectives",
    ]
    assert classes[-1].ours_ns == sum(info.end_ns - info.start_ns for info in run.collectives)
    assert classes[-1].count == len(run.collectives)


def test_reasons_are_those_that_apply(tmp_path):
    run, folder = recorded(made_up_run(), tmp_path / "a", per_node=2)
    reasons = " ".join(compare_astra(run, folder / "chakra", builtin()).reasons)
    assert "no congestion" in reasons and "ASTRA-sim itself was not run" in reasons and "fixed gaps" in reasons
    assert "kinds that ASTRA-sim lacks" not in reasons and "tuner took" not in reasons and "no streams" not in reasons
    b = Builder(4)
    b.kernel(MM)
    b.kernel(MM, stream=3)
    b.collective("broadcast", 1 << 22, 30.0, stream=7, ranks=[0, 3])
    run, folder = recorded(b, tmp_path / "b", per_node=2)
    run.collectives[0].algorithm = "tree/LL"
    reasons = " ".join(compare_astra(run, folder / "chakra", builtin(aware=True)).reasons)
    for words in (
        "broadcasts run as all-gathers",
        "tuner took tree",
        "no streams: on one rank kernels for",
        "differ in node and place",
        "one switch",
    ):
        assert words in reasons, words


def test_groups_at_the_same_place_are_run_once(tmp_path, monkeypatch):
    b = Builder(8)
    for first in (0, 2, 4, 6):
        b.collective("all_reduce", 1 << 22, 30.0, stream=7, ranks=[first, first + 1])
    run, folder = recorded(b, tmp_path, per_node=2)
    calls = []
    original = AstraSim.finish_ns
    monkeypatch.setattr(AstraSim, "finish_ns", lambda *args: calls.append(args[1]) or original(*args))
    found = line(compare_astra(run, folder / "chakra", builtin()), "all_reduce, 2 ranks")
    assert found.count == 4 and found.theirs_ns > 0 and found.theirs_ns % 4 == 0
    assert len(calls) == 2  # the whole run, and one collective


_BINARY = """#!{python}
import glob, sys
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:])
ranks = len(glob.glob(options["workload-configuration"] + ".*.et"))
for name in ("system", "network", "remote-memory", "comm-group"):
    assert open(options[f"{{name}}-configuration"]).read()
for rank in range({ranks}):
    print(f"[workload] [info] sys[{{rank}}] finished, {{5000000 + rank}} cycles, exposed communication 7 cycles.")
{ending}
"""


def binary(path, ranks="ranks", ending=""):
    path.write_text(_BINARY.format(python=sys.executable, ranks=ranks, ending=ending))
    path.chmod(0o755)
    return path


def test_a_binary(tmp_path):
    run, folder = recorded(made_up_run(), tmp_path / "run", per_node=2)
    program = binary(tmp_path / "AstraSim_Analytical_Congestion_Unaware")
    comparison = compare_astra(run, folder / "chakra", AstraSim.of(program, False, 60))
    assert line(comparison, "last rank ends").theirs_ns == 5_000_003
    assert line(comparison, "all collectives").theirs_ns == 5_000_003 * len(run.collectives)
    assert "not run" not in " ".join(comparison.reasons) and "ASTRA-sim, " in comparison.title
    assert AstraSim.of(binary(tmp_path / "x_Congestion_Aware"), False, 60).is_aware


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"ranks": "ranks - 1"}, "1 of 4 NPUs did not finish .*deadlock"),
        ({"ending": "sys.exit('what went wrong')"}, "exit code 1: .*what went wrong"),
        ({"ending": "import time; time.sleep(60)"}, "did not end within 1 s"),
        ({"ranks": "0"}, "without a line .*no ASTRA-sim.: it printed nothing"),
        ({"ranks": "0", "ending": "print('hello')"}, "a deadlock of all NPUs, or no ASTRA-sim.: hello"),
    ],
)
def test_a_binary_that_fails(tmp_path, settings, words):
    run, folder = recorded(made_up_run(1), tmp_path / "run", per_node=2)
    program = binary(tmp_path / "unaware", **settings)
    with pytest.raises(UserError, match=words):
        compare_astra(run, folder / "chakra", AstraSim.of(program, False, 1))


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        AstraSim.of(tmp_path / "nothing", False, 1)
    (tmp_path / "text").write_text("x")
    with pytest.raises(UserError, match="not executable"):
        AstraSim.of(tmp_path / "text", False, 1)
    b = Builder(1)
    b.kernel(MM)
    run, folder = recorded(b, tmp_path / "one")
    with pytest.raises(UserError, match="one rank"):
        compare_astra(run, folder / "chakra", builtin())
    run.cluster = "unknown"
    with pytest.raises(UserError, match="on which cluster"):
        compare_astra(run, folder / "chakra", builtin())


def test_the_command(tmp_path):
    _, folder = recorded(made_up_run(), tmp_path / "run", per_node=2)
    said = []

    def run(**changes):
        options = dict(aware=False, limit_s=60, html=None, is_json=False, say=said.append)
        compare(folder, changes.pop("astra_sim", None), changes.pop("kineto", []), **{**options, **changes})
        return said[-1]

    text = run()
    assert "last rank ends" in text and "Why they may differ" in text and "our copy of ASTRA-sim's semantics" in text
    document = json.loads(run(is_json=True, html=tmp_path / "page.html"))
    assert document["theirs"] == "ASTRA-sim" and document["lines"][0]["difference"] is not None
    assert "\n" not in document["title"] and {type(line["count"]) for line in document["lines"]} == {int}
    page = (tmp_path / "page.html").read_text()
    assert page.count("<rect") == 2 * len(document["lines"]) and "http" not in page and "<script" not in page
    with pytest.raises(UserError, match="--congestion-aware is about ASTRA-sim's network"):
        run(kineto=[Path("x.json")], aware=True)
    with pytest.raises(UserError, match="one at a time"):
        run(astra_sim="builtin", kineto=[Path("x.json")])
    with pytest.raises(UserError, match="a binary for each network"):
        run(astra_sim=str(tmp_path / "x"), aware=True)


def left_running(word):
    """Command lines of live processes with this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line, state = path.read_bytes(), path.with_name("stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended
        if word.encode() in line and state != "Z":
            found.append(line)
    return found


def wrapper(path):
    """A program that starts another one, which goes on."""
    path.write_text(f"#!/bin/sh\n{sys.executable} -c 'import time; time.sleep(300)' {path} &\nwait\n")
    path.chmod(0o755)
    return path


def test_the_time_limit_ends_what_a_wrapper_has_started(tmp_path):
    run, folder = recorded(made_up_run(1), tmp_path / "run", per_node=2)
    program = wrapper(tmp_path / "wrapper_unaware")
    with pytest.raises(UserError, match="did not end within 1 s"):
        compare_astra(run, folder / "chakra", AstraSim.of(program, False, 1))
    assert not left_running(str(program))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(tmp_path, signum):
    """Exit code 128 + signal, no process and no temporary folder left."""
    recorded(made_up_run(1), tmp_path / "run", per_node=2)
    program, scratch = wrapper(tmp_path / "wrapper_unaware"), tmp_path / "scratch"
    scratch.mkdir()
    words = [sys.executable, "-m", "phantora.cli", "compare", "--astra-sim", str(program), str(tmp_path / "run")]
    process = subprocess.Popen(words, env={**os.environ, "TMPDIR": str(scratch)}, stderr=subprocess.PIPE, text=True)
    while len(left_running(str(program))) < 3 and process.poll() is None:  # the command, the wrapper, what it started
        time.sleep(0.05)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signum and "Traceback" not in errors, errors
    assert not left_running(str(program)) and not list(scratch.iterdir())
