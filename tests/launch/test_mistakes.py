"""The user's mistakes: one clear line, exit code 2, no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def phantora(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "phantora.cli", *arguments], capture_output=True, text=True, cwd=cwd, timeout=60)


def assert_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('hello')\n")
    return str(path)


def test_unknown_cluster_names_the_nearest(script: str) -> None:
    assert_one_line(phantora("record-and-simulate", "--cluster", "dgx-h10", script), "dgx-h10", "dgx-h100")


def test_bad_key_names_file_line_and_nearest_key(tmp_path: Path, script: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "dgx-h100"\n\n[gpu]\nmemory_byte = 5\n')
    assert_one_line(phantora("record-and-simulate", "--cluster", str(file), script), "mine.toml", "4", "memory_byte", "memory_bytes")


def test_toml_syntax_error_names_file_and_line(tmp_path: Path, script: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "dgx-h100"\nname = \n')
    assert_one_line(phantora("record-and-simulate", "--cluster", str(file), script), "mine.toml", "2")


def test_script_not_found_names_a_near_one(script: str) -> None:
    assert_one_line(phantora("record-and-simulate", script.replace("train", "trian")), "not found", "train.py")


def test_module_not_found() -> None:
    assert_one_line(phantora("record-and-simulate", "-m", "no_such_module_here"), "no_such_module_here")


def test_world_too_large_says_by_how_much(script: str) -> None:
    assert_one_line(phantora("record-and-simulate", "--nproc-per-node", "16", "--cluster", "dgx-h100", script), "16", "8")
    assert_one_line(phantora("record-and-simulate", "--nnodes", "2", "--cluster", "lab-h200", script), "2", "1")


def test_ranks_outside_the_world(script: str) -> None:
    assert_one_line(phantora("record-and-simulate", "--nproc-per-node", "2", "--perfetto-ranks", "0,5", script), "5")
    assert_one_line(phantora("record-and-simulate", "--ranks-on-terminal", "x", script), "x")
    assert_one_line(phantora("export", "--format", "chrome", "--ranks", "0,0,-1", "run"), "--ranks 0,0,-1: -1 is no rank")
    assert_one_line(phantora("export", "--format", "chrome", "--ranks", "0,1,0", "run"), "rank 0 stands there twice")


@pytest.mark.torch
def test_no_compiler(tmp_path: Path, script: str) -> None:
    import os

    env = {**os.environ, "CXX": "/no/such/compiler", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-m", "phantora.cli", "record-and-simulate", "--out", str(tmp_path / "run"), script], capture_output=True, text=True, env=env, timeout=120)
    assert_one_line(done, "compiler", "phantora doctor")


@pytest.mark.torch
def test_unsupported_torch(tmp_path: Path, script: str) -> None:
    import os

    fake = tmp_path / "site" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("")
    (fake / "version.py").write_text("__version__ = '1.13.1'\ncuda = None\n")
    env = {**os.environ, "PYTHONPATH": str(fake.parent)}
    done = subprocess.run([sys.executable, "-m", "phantora.cli", "record-and-simulate", "--out", str(tmp_path / "run"), script], capture_output=True, text=True, env=env, timeout=120)
    assert_one_line(done, "1.13.1", "2.13")


def test_unknown_option_names_the_nearest(script: str) -> None:
    assert_one_line(phantora("record-and-simulate", "--nproc-per-nod", "2", script), "--nproc-per-nod", "--nproc-per-node")


@pytest.mark.torch
def test_submodule_not_found(tmp_path: Path) -> None:
    assert_one_line(phantora("record-and-simulate", "--out", str(tmp_path / "run"), "-m", "torch.distributed.nothing"), "torch.distributed.nothing")


def test_folder_as_script(tmp_path: Path) -> None:
    assert_one_line(phantora("record-and-simulate", str(tmp_path)), "is a folder")


def test_names_that_are_too_long(script: str) -> None:
    assert_one_line(phantora("record-and-simulate", "--cluster", "x" * 5000, script), "xxx")
    assert_one_line(phantora("record-and-simulate", "x" * 5000), "File name too long")
    assert_one_line(phantora("record-and-simulate", "--out", "x" * 300, script), "--out", "File name too long")


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["record-and-simulate"], ["Missing argument", "SCRIPT"]),
        (["record-and-simulate", "--nnodes", "x", "a.py"], ["--nnodes", "x"]),
        (["record-and-simulate", "--out"], ["--out", "argument"]),
        (["clusters", "show"], ["Missing argument"]),
        (["nothing"], ["nothing"]),
    ],
)
def test_errors_of_the_command_line(arguments: list[str], words: list[str]) -> None:
    assert_one_line(phantora(*arguments), *words)


@pytest.mark.parametrize("taken", ["run", "run/logs", "run/logs/rank_0", "run/chakra"])
def test_file_where_a_folder_is_needed(taken: str, tmp_path: Path, script: str) -> None:
    (tmp_path / taken).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / taken).write_text("")
    assert_one_line(phantora("record-and-simulate", "--out", str(tmp_path / "run"), script), taken)


@pytest.mark.parametrize("taken", ["run/summary.json", "run/trace.pftrace", "run/logs/rank_0/stdout.log"])
def test_folder_where_a_file_is_needed(taken: str, tmp_path: Path, script: str) -> None:
    (tmp_path / taken).mkdir(parents=True)
    assert_one_line(phantora("record-and-simulate", "--out", str(tmp_path / "run"), script), taken, "folder")


def test_output_below_a_file(tmp_path: Path, script: str) -> None:
    for option in ("--out", "--log-dir"):
        assert_one_line(phantora("record-and-simulate", "--out", str(tmp_path), option, f"{script}/run", script), option, "Not a directory")
    assert_one_line(phantora("record-and-simulate", "--out", "/proc/run", script), "/proc/run")


@pytest.mark.torch
def test_long_folder_for_temporary_files_and_odd_number_of_threads(tmp_path: Path, script: str) -> None:
    import os

    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    env = {**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "abc"}
    command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--nproc-per-node", "2", "--out", str(tmp_path / "run"), script]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0 and "OMP_NUM_THREADS=abc" in done.stderr and "hello" in done.stdout, done.stderr


@pytest.mark.torch
def test_script_that_ends_as_argparse_does(tmp_path: Path) -> None:
    """Exit code 2 of a rank is not the user's mistake with phantora: the results are written."""
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(2)")
    done = phantora("record-and-simulate", "--out", str(tmp_path / "run"), str(script))
    assert done.returncode == 2 and (tmp_path / "run" / "summary.json").exists() and "rank 0 ended with exit code 2" in done.stderr
