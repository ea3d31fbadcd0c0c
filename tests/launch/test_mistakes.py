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
