"""Unions of intervals, and the three shares of a rank's time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_run import ADD, COPY, Builder, made_up_run

from phantora.report.breakdown import clip, rank_breakdown, step_breakdowns, total, union
from phantora.trace.model import RankTrace

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=30)


def arrays(intervals):
    begins = np.array([begin for begin, _ in intervals], np.int64)
    return begins, begins + np.array([length for _, length in intervals], np.int64)


@given(INTERVALS, st.integers(0, 80), st.integers(0, 80))
def test_union_and_clip_agree_with_counting_points(intervals, low, high):
    points = {p for begin, length in intervals for p in range(begin, begin + length)}
    joined = union(*arrays(intervals))
    assert total(joined) == len(points)
    assert np.all(joined[0][1:] > joined[1][:-1])
    low, high = sorted((low, high))
    assert total(clip(joined, low, high)) == len(points & set(range(low, high)))


def test_exposed_communication_is_what_no_kernel_hides():
    """A collective of 40 us beside a kernel of 15.5 us: it sticks out by what the kernel does not cover."""
    b = Builder(1)
    b.kernel(ADD)  # issued at 4 us, ends at 19.5 us
    b.collective("all_reduce", 64, 40.0, stream=7)  # issued at 8 us, ends at 48 us
    b.synchronize()
    b.kernel(ADD)  # 52 us .. 67.5 us
    b.synchronize()
    result = rank_breakdown(b.finish().ranks[0])
    assert (result.begin_ns, result.end_ns) == (0, 67_500)
    assert result.compute_ns == 31_000
    assert result.communication_ns == 40_000
    assert result.exposed_communication_ns == 48_000 - 19_500
    assert result.idle_ns == 4_000 + 4_000


def test_parts_make_the_whole():
    for trace in made_up_run().ranks:
        whole = rank_breakdown(trace)
        assert whole.compute_ns + whole.exposed_communication_ns + whole.idle_ns == whole.end_ns == trace.host_end_ns
        steps = step_breakdowns(trace)
        assert [step.name for step in steps] == ["step 0", "step 1", "step 2"]
        assert sum(step.compute_ns for step in steps) == whole.compute_ns
        assert all(s.compute_ns + s.exposed_communication_ns + s.idle_ns == s.end_ns - s.begin_ns for s in steps)


STEPS, OTHERS = ["step 3", "train.step 3", "ProfilerStep#12", "iter_7", "iteration"], ["forward", "footstep", "optimizer", "Zero_Stage3.step"]


@pytest.mark.parametrize("name,is_step", [(name, True) for name in STEPS] + [(name, False) for name in OTHERS])
def test_names_of_steps(name, is_step):
    b = Builder(1)
    b.mark(name, 1)
    b.mark("step 1", 1) if is_step else None  # inside a step: not counted again
    b.kernel(COPY)
    b.mark("step 1", -1) if is_step else None
    b.mark(name, -1)
    assert [step.name for step in step_breakdowns(b.finish().ranks[0])] == ([name] if is_step else [])


def test_rank_without_work():
    result = rank_breakdown(RankTrace(0, host_end_ns=70))
    assert (result.compute_ns, result.exposed_communication_ns, result.idle_ns) == (0, 0, 70)
