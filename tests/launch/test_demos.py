"""Whole training scripts under the product's launcher: they end well and their timelines are causally sound."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from phantora.launch.job import Job
from phantora.launch.options import JobOptions
from phantora.trace.causality import violations

pytestmark = pytest.mark.torch

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run(script: Path, nproc: int, tmp_path: Path, args: tuple[str, ...] = ()):
    out = tmp_path / "run"
    options = JobOptions(script=str(script), script_args=args, nproc_per_node=nproc, out=str(out), log_dir=str(out / "logs"), command=("test",))
    lines: list[str] = []
    result = Job(options, lambda text, stream: lines.append(text), lambda simulation: None).run()
    assert result.error is None, result.error + "\n" + "".join(lines)
    return result.run, "".join(lines)


@pytest.mark.parametrize(
    "name,nproc",
    [
        ("gpt_amp", 1), ("prefetcher", 1), ("checkpointing", 1), ("ddp", 4), ("ddp", 1), ("ddp_hook", 4), ("fsdp1", 4), ("fsdp2", 4), ("fsdp2", 8),
        ("tensor_parallel", 2), ("pipeline", 2), ("pipeline", 4), ("two_dimensional", 4), ("hf_trainer", 2),
    ],
)
def test_script_runs_and_its_timeline_is_sound(name: str, nproc: int, tmp_path: Path) -> None:
    if name == "hf_trainer":
        pytest.importorskip("transformers")
        pytest.importorskip("accelerate")
    recorded, output = run(SCRIPTS / f"{name}.py", nproc, tmp_path)
    assert "done" in output
    assert violations(recorded) == []
    assert len(recorded.ranks) == nproc
    for trace in recorded.ranks:
        assert len(trace.start_ns) > 20 and min(trace.start_ns) >= 0 and trace.exit_code == 0
    if nproc > 1:
        assert recorded.collectives and all(collective.end_ns > collective.start_ns for collective in recorded.collectives)
    assert recorded.notes == []
