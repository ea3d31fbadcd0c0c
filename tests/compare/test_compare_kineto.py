"""Against a measured trace: a run against itself as Kineto files, changes that must show, steps, operators of one side
only."""

import json
import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest
from phantora.exporters.chrome_kineto import write_kineto

from phantora.compare.kineto import compare_kineto
from phantora.compare.result import Line, as_json, as_text, class_name, difference_text, size_bucket
from phantora.importers.kineto import read

sys.path.insert(0, str(Path(__file__).parents[1]))
from made_up_run import ADD, LOSS, MM, Builder, made_up_run  # noqa: E402


def measured(run, tmp_path):
    """The run as if a profiler had written it."""
    return read(write_kineto(run, tmp_path))


def by_name(comparison):
    return {line.name: line for line in comparison.lines}


def test_a_run_against_itself(tmp_path):
    run = made_up_run()
    comparison = compare_kineto(run, *measured(run, tmp_path))
    lines = by_name(comparison)
    assert comparison.per == "step and rank" and comparison.unmatched == ()
    for name in ("gemm", "attention", "optimizer", "all kernels", "all communication", "computing", "duration"):
        assert lines[name].ours_ns > 0 and lines[name].theirs_ns == pytest.approx(lines[name].ours_ns, rel=2e-3), name
    assert lines["gemm"].count == 2 * (4 + 6)  # forward and backward of two layers, in a step
    assert lines["all_gather, 4 ranks, 256 MiB - 512 MiB"].ours_ns == 2 * 680_000
    assert lines["all_gather, 4 ranks, 256 MiB - 512 MiB"].theirs_ns == 2 * 680_000  # without waiting for rank 2


def test_a_trace_of_one_rank_of_the_job(tmp_path):
    run = made_up_run()
    one, report = read(write_kineto(run, tmp_path)[1:2], keep_cut=True)
    assert one.world_size == 4 and [trace.rank for trace in one.ranks] == [1]
    comparison = compare_kineto(run, one, report)
    assert by_name(comparison)["all_gather, 4 ranks, 256 MiB - 512 MiB"].theirs_ns > 0
    assert any("the trace has 1 of 4 ranks" in reason for reason in comparison.reasons)
    assert not any("not the same job" in reason for reason in comparison.reasons)


def test_slower_kernels_show_where_they_are(tmp_path):
    run, slow = made_up_run(), made_up_run()
    for trace in slow.ranks:  # each add took 10 us longer on the hardware; its stream was free
        trace.end_ns = array("q", [end + 10_000 * (s == ADD) for end, s in zip(trace.end_ns, trace.signature)])
    lines = by_name(compare_kineto(run, *measured(slow, tmp_path)))
    assert lines["gemm"].difference == pytest.approx(0, abs=1e-3)
    assert lines["elementwise"].theirs_ns - lines["elementwise"].ours_ns == pytest.approx(
        10_000 * per_step(run, ADD), rel=1e-3
    )


def per_step(run, signature):
    """How often a step runs it on one rank."""
    return sum(s == signature for s in run.ranks[0].signature) / 3


def test_operators_of_one_side_are_listed(tmp_path):
    run, other = made_up_run(), made_up_run()
    other.signatures[LOSS] = replace(other.signatures[LOSS], name="aten::nll_loss_forward")
    comparison = compare_kineto(run, *measured(other, tmp_path))
    found = {line.name: (line.ours_ns, line.theirs_ns) for line in comparison.unmatched}
    assert found == {"aten::cross_entropy_loss": (44_200, 0), "aten::nll_loss_forward": (0, pytest.approx(44_200))}
    assert "aten::nll_loss_forward: measured 44.2 us" in as_text(comparison)
    assert len(json.loads(as_json(comparison))["unmatched"]) == 2


def test_without_steps_whole_recordings_are_compared(tmp_path):
    run, bare = made_up_run(), made_up_run()
    for trace in bare.ranks:
        trace.mark_name, trace.mark_ns, trace.mark_depth = [], array("q"), array("q")
    comparison = compare_kineto(run, *measured(bare, tmp_path))
    assert comparison.per == "rank" and "no steps are marked in the trace" in comparison.reasons[0]
    assert by_name(comparison)["gemm"].count == 3 * 20


def test_a_profile_of_steps_that_only_the_optimizer_tells_apart(tmp_path):
    """torch.optim marks each step of its own; a recording with three of them holds three steps."""
    run, profiled = made_up_run(), made_up_run()
    for trace in profiled.ranks:
        marks = zip(trace.mark_ns, trace.mark_name, trace.mark_depth)
        begins = [time for time, name, depth in marks if name == "optimizer" and depth > 0]
        trace.mark_ns = array("q", [time for begin in begins for time in (begin, begin + 4000)])
        trace.mark_name, trace.mark_depth = ["Optimizer.step#AdamW.step"] * 6, array("q", [1, -1] * 3)
    comparison = compare_kineto(run, *measured(profiled, tmp_path))
    lines = by_name(comparison)
    assert comparison.per == "step and rank"
    assert lines["gemm"].theirs_ns == pytest.approx(lines["gemm"].ours_ns, rel=1e-3)


def test_missing_ranks_are_said(tmp_path):
    run = made_up_run()
    paths = write_kineto(run, tmp_path)
    comparison = compare_kineto(run, *read(paths[2:3]))
    assert "1 of 4 ranks" in " ".join(comparison.reasons)
    assert by_name(comparison)["gemm"].difference == pytest.approx(0, abs=1e-3)
    assert comparison.title.endswith("a trace of 1 rank")


def test_another_number_of_ranks_is_said_first(tmp_path):
    run, other = made_up_run(), Builder(1)
    other.kernel(MM)
    comparison = compare_kineto(run, *measured(other.finish(), tmp_path))
    assert comparison.reasons[0].startswith("not the same job: 4 ranks simulated, a trace of 1 rank;")


def test_names_and_buckets():
    assert [size_bucket(n) for n in (0, 1, 1023, 1024, 3 << 20)] == [
        "0 B",
        "1 B - 2 B",
        "512 B - 1 KiB",
        "1 KiB - 2 KiB",
        "2 MiB - 4 MiB",
    ]
    assert class_name("all_reduce", 8, 1 << 20) == "all_reduce, 8 ranks, 1 MiB - 2 MiB"
    assert class_name("barrier", 4, 0) == "barrier, 4 ranks, 0 B"
    line = Line(section="", name="", ours_ns=200, theirs_ns=150)
    assert (line.difference, difference_text(line)) == (-0.25, "-25.0 %")
    assert difference_text(Line(section="", name="", ours_ns=0, theirs_ns=1)) == "-"
