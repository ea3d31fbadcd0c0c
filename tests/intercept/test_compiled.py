"""torch.compile and CUDA graphs on the simulated device (probes/compiled.py, probes/cuda_graphs.py), and what is
measured in a kernel's text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.intercept import build
from phantora.intercept.compiled import source

HERE = Path(__file__).parent

problem = build.status().problem
needs_device = pytest.mark.skipif(bool(problem), reason=problem or "the device can be built")


def run(script: str, tmp_path: Path, *arguments: str, **variables: str) -> str:
    """Output of a probe with an empty cache of compiled graphs; fails with it when the probe fails."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "graphs"), **variables}
    command = [sys.executable, "-W", "ignore", str(HERE / "probes" / script), *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.torch
@needs_device
@pytest.mark.parametrize("name", ["compiled", "cuda_graphs"])
def test_probe(name: str, tmp_path: Path) -> None:
    run(f"{name}.py", tmp_path)


@pytest.mark.torch
@needs_device
def test_a_compiled_step_is_the_same_compiled_and_cached(tmp_path: Path) -> None:
    """Launches with their times, memory; fewer launches and less memory than in eager code."""
    first, second = (run("compiled_step.py", tmp_path, "compiled").splitlines()[-1] for _ in range(2))
    assert first == second
    disabled = run("compiled_step.py", tmp_path, "compiled", TORCH_COMPILE_DISABLE="1").splitlines()[-1]
    assert disabled == run("compiled_step.py", tmp_path, "eager").splitlines()[-1]
    compiled_launches, compiled_peak, _ = map(int, first.split())
    eager_launches, eager_peak, _ = map(int, disabled.split())
    assert compiled_launches < eager_launches
    assert compiled_peak < 0.8 * eager_peak


POINTWISE = """
    xnumel = 1024
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    tmp0 = tl.load(in_ptr0 + (x0), xmask)
    tmp1 = tl.full([1], 2.0, tl.float32)
    tmp2 = tmp0 * tmp1
    tmp3 = libdevice.tanh(tmp2)
    tmp4 = tl_math.exp(tmp3)
    tmp5 = (tmp4 / tmp2)
    tmp6 = tl.rand(tmp7, (tmp8).to(tl.uint32))
    tl.store(out_ptr0 + (x0), tmp6, xmask)
"""
REDUCTION = """
    rindex = r0_index
    tmp0 = tl.load(in_ptr0 + (r0_1 + 512*x0), xmask)
    tmp1 = tmp0 * tmp0
    tmp4 = tl.sum(tmp3, 1)[:, None].to(tl.float32)
    tmp5 = tmp4 + tmp4
    tmp6 = libdevice.rsqrt(tmp5)
    tmp7 = tmp0 * tmp6
"""


def test_instructions_of_a_pointwise_kernel() -> None:
    assert source.count(POINTWISE) == source.Instructions(plain=1, special=2, heavy=1, random=1)


def test_what_depends_on_a_row_alone_counts_as_nothing() -> None:
    """Two products and the sum run for each element; what is done to the sum does not."""
    assert source.count(REDUCTION) == source.Instructions(plain=3, special=0, heavy=0, random=0)


def test_helpers_of_walked_reductions_count_what_they_are_made_of() -> None:
    text = "rindex\n    _tmp3_max_next, _tmp3_sum_next = triton_helpers.online_softmax_combine(a, b, tmp2, True)\n"
    assert source.count(text) == source.Instructions(plain=6, special=2, heavy=0, random=0)
