"""Cases files, what bounds a step, and the verdicts of `python -m phantora.validation hardware`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.errors import UserError
from phantora.validation import cases, hardware

ROW = {
    "case": "a", "step_ms": 100.0, "gpu_busy_ms": 90.0, "kernels": 1000, "max_allocated_mib": 2000.0, "max_reserved_mib": 3000.0,
}  # fmt: skip


def write(path: Path, *rows: dict) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def compared(simulated: dict, **measured: object) -> hardware.Compared:
    def figures(row: dict) -> cases.Figures:
        return cases._figures(row, Path("made up"))

    return hardware.Compared(
        case=str({**ROW, **measured}["case"]), simulated=figures({**ROW, **simulated}), measured=figures({**ROW, **measured})
    )


def test_lines_and_lists_are_read_and_runs_of_one_case_averaged(tmp_path: Path) -> None:
    lines = write(tmp_path / "lines.jsonl", ROW, {"case": "broken", "error": "no memory"}, {**ROW, "case": "b"})
    assert list(cases.read_cases(lines)) == ["a", "b"]
    ranks = [{"compute_ms": 60.0}, {"compute_ms": 80.0}]
    several = {**ROW, "world_size": 2, "copies": 20, "communication_kernels": 5, "ranks": ranks}
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps([several, {**several, "step_ms": 120.0}]))
    figures = cases.read_cases(listed)["a"]
    assert (figures.step_ms, figures.busy_ms, figures.kernels) == (110.0, 70.0, 1015)


@pytest.mark.parametrize(
    "text,words", [("", "no measured case"), ("{", "no cases file"), ('{"case": "a", "step_ms": 1}', "case a lacks the field 'gpu_busy_ms'")]
)
def test_files_that_are_none(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=words):
        cases.read_cases(path)


def test_a_missing_workload_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cases.SHARED_VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match="--workloads, or set PHANTORA_SHARED"):
        cases.workload_of("a", None)
    bench = write(tmp_path / "bench.py")
    assert cases.workload_of("a", bench).arguments == ("--case", "a")
    assert cases.workload_of("compiled-a", bench).arguments == (str(bench), "--case", "compiled-a")
    assert cases.workload_of_all(["a", "b"], bench).arguments == ("--case", "a", "--case", "b")
    assert cases.workload_of("fsdp2-llama-1b-b2-s4096", None).num_ranks == 2
    assert cases.is_train_bench_case("a") and not cases.is_train_bench_case("fsdp2-llama-1b-b2-s4096")


def test_the_command_says_in_one_line_what_it_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "phantora.validation", "hardware"],
        capture_output=True, text=True, env={"PATH": "", cases.SHARED_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2 and "no cases file at" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_what_bounds_a_step() -> None:
    assert compared({}).bound == "gpu"
    assert compared({}, gpu_busy_ms=84.0).bound == "host"
    assert compared({}, case="resnet50-b64").bound == "data"


def test_each_limit_can_be_exceeded() -> None:
    fine = [compared({"step_ms": 102.0}), compared({"step_ms": 30.0}, step_ms=30.0, gpu_busy_ms=5.0)]
    assert all(check.holds for check in hardware.checks(fine))
    for change in ({"step_ms": 104.0}, {"kernels": 1150}, {"max_allocated_mib": 2011.0}, {"max_reserved_mib": 2900.0}):
        found = hardware.checks([compared(change)])
        assert [check.field for check in found if not check.holds] == [{"max_allocated_mib": "allocated_mib", "max_reserved_mib": "reserved_mib"}.get(*change, *change)]
    data = compared({"step_ms": 500.0, "gpu_busy_ms": 94.0}, case="vit")
    (failed,) = (check for check in hardware.checks([data]) if not check.holds)
    assert failed.field == "busy_ms" and failed.bound == "data"
    assert "EXCEEDED" in hardware.table([data]) and "+400.0%" in hardware.table([data])
