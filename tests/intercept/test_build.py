"""Compiling the native device: what happens without compiler, with another torch, and when many start at once."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.errors import UserError
from phantora.intercept import build

pytestmark = pytest.mark.torch

# A compiler that takes a moment, says in a file that it was called, and writes its -o argument.
SLOW_COMPILER = """#!/bin/sh
echo called >> "$(dirname "$0")/calls"
sleep 0.5
while [ "$1" != -o ]; do shift; done
echo module > "$2"
"""
FAILING_COMPILER = """#!/bin/sh
echo "unit.cpp:1:1: error: 'concept' does not name a type" >&2
exit 1
"""


def make_compiler(folder: Path, text: str) -> Path:
    path = folder / "cxx"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_version_is_known_without_importing_torch() -> None:
    code = "import sys; from phantora.intercept import build; print(build.torch_version(), 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, is_imported = result.stdout.split()
    assert version.split("+")[0] == importlib.metadata.version("torch").split("+")[0]
    assert is_imported == "False"


def test_an_unsupported_torch_is_named_with_the_supported_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "torch_version", lambda: "2.5.1+cu124")
    with pytest.raises(UserError, match=r"torch 2\.5\.1\+cu124 is not supported \(supported: 2\.12, 2\.13, 2\.14\)"):
        build.native_path()
    assert "2.5.1" in build.status().problem


def test_without_compiler_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(UserError) as error:
        build.native_path()
    text = str(error.value)
    assert "apt-get install g++" in text and "phantora doctor" in text and "\n" not in text
    status = build.status()
    assert status.compiler is None and not status.is_built and status.problem == text


def test_a_wrong_cxx_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="'no-such-compiler', which is not on PATH"):
        build.compiler()


def test_the_first_error_of_the_compiler_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(make_compiler(tmp_path, FAILING_COMPILER)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UserError, match="'concept' does not name a type"):
        build.native_path()
    assert not list((tmp_path / "phantora").glob("*.so"))


def test_processes_that_start_at_once_compile_once(tmp_path: Path) -> None:
    environment = {**os.environ, "CXX": str(make_compiler(tmp_path, SLOW_COMPILER)), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "phantora.intercept.build"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env=environment, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    outputs = [process.communicate(timeout=60) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert (tmp_path / "calls").read_text().split() == ["called"]
    paths = {stdout.strip() for stdout, _ in outputs}
    assert len(paths) == 1 and Path(paths.pop()).read_text() == "module\n"
    assert sorted("compiling the simulated device" in stderr for _, stderr in outputs) == [False, False, True]


def test_a_changed_source_is_another_module(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.status().native_path
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-DCHANGED"))
    assert build.status().native_path != before
