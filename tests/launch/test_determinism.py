"""Two runs of one command give identical bytes, on one core and on several."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[1] / "scripts"


def digests(folder: Path) -> dict[str, str]:
    """Of every result file; summary.json without its wall_s line."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in ("stacks.log", "stderr.log"):  # warnings name pids and core counts
            data = path.read_bytes()
            if path.name == "summary.json":
                data = b"\n".join(line for line in data.splitlines() if b'"wall_s"' not in line)
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def cores(number: int | None) -> set[int]:
    available = sorted(os.sched_getaffinity(0))
    return set(available if number is None else available[:number])


@pytest.mark.parametrize(
    "name,nproc,options",
    [
        ("gpt_amp", 1, ()),
        ("fsdp2", 4, ()),
        ("pipeline", 4, ()),
        ("two_dimensional", 4, ()),
        ("ddp_hook", 2, ()),
        ("fsdp2", 4, ("--contention",)),
        ("two_dimensional", 4, ("--contention",)),
    ],
)
def test_runs_are_identical(name: str, nproc: int, options: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "run"  # one path for all: it is part of the command that the summary repeats
    command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--nproc-per-node", str(nproc), "--out", str(out), *options, str(SCRIPTS / f"{name}.py")]
    results = []
    for number in (None, 1, 2):
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run(command, check=True, capture_output=True, timeout=180, preexec_fn=lambda n=number: os.sched_setaffinity(0, cores(n)))
        results.append(digests(out))
    assert len(results[0]) > 4
    for other in results[1:]:
        assert other == results[0]
