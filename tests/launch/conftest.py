"""Runs the product's own command on a script, as a user does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import pytest


@dataclass
class Outcome:
    """What a run of the command left behind."""

    code: int
    stdout: str
    stderr: str
    out: Path
    seconds: float

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.out / "summary.json").read_text())

    def log(self, rank: int, stream: str = "stdout") -> str:
        return (self.out / "logs" / f"rank_{rank}" / f"{stream}.log").read_text()


Simulate = Callable[..., Outcome]


@pytest.fixture
def simulate(tmp_path: Path) -> Simulate:
    """simulate(script text or path, nproc=1, args=(), options=(), timeout=120) -> Outcome."""
    count = iter(range(100))

    def run(script: str | Path, nproc: int = 1, args: tuple[str, ...] = (), options: tuple[str, ...] = (), timeout: float = 120, cluster: str = "dgx-h100", env: dict[str, str] | None = None) -> Outcome:
        number = next(count)
        if isinstance(script, str):
            path = tmp_path / f"script{number}.py"
            path.write_text(textwrap.dedent(script))
        else:
            path = script
        out = tmp_path / f"run{number}"
        command = [sys.executable, "-m", "phantora.cli", "record-and-simulate", "--nproc-per-node", str(nproc), "--cluster", cluster, "--out", str(out), *options, str(path), *args]
        started = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
        return Outcome(done.returncode, done.stdout, done.stderr, out, time.monotonic() - started)

    return run
