"""Measured compiled steps as cases, measured fused kernels as calls, and `python -m phantora.validation compiled`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from phantora.compute.pricer import pricer_of
from phantora.errors import UserError
from phantora.validation import compiled, fused_kernels

TEXT = """
    triton_meta={'signature': {'in_ptr0': '*bf16', 'out_ptr0': '*fp32', 'xnumel': 'i32'}}
@triton.jit
    xnumel = 1048576
    x0 = (xindex % 512)
    x1 = xindex // 512
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x0 + 1024*x1), None)
    tmp1 = tl.load(in_ptr0 + (512 + x0 + 1024*x1), None)
    tmp2 = tmp0 * tmp1
    tl.store(out_ptr0 + (x2), tmp2, None)
"""
ARGUMENTS = [{"numel": 2 << 20}, {"numel": 1 << 20}]
DESCRIBED = {
    "numels": {"x": 1 << 20, "r0_": 1}, "bytes": 8 << 20, "reductions": 0, "persistent": False, "mix_order": False,
    "arguments": ARGUMENTS, "source": TEXT,
}  # fmt: skip


def kernel_row(*described: dict) -> dict:
    return {"case": "halves/bf16", "kernels": [{"kernel": "triton_a", "count": 1, "us": 5.0, "described": list(described)}]}


def test_a_measured_kernel_is_described_like_a_simulated_one() -> None:
    (kernel,) = fused_kernels.measured_kernels([kernel_row(DESCRIBED)])
    facts = dict(kernel.call.args)
    assert (facts["kind"], facts["rows"], facts["plain"], facts["near"]) == ("pointwise", 1 << 20, 1, 3)
    assert facts["bytes"] == 8 << 20  # both halves of the input once, two bytes each, and four bytes of the output


def test_a_buffer_that_inductor_does_not_count_is_counted_in_the_text() -> None:
    (kernel,) = fused_kernels.measured_kernels([kernel_row({**DESCRIBED, "bytes": 4 << 20, "arguments": ARGUMENTS[:1]})])
    assert kernel.call.arg("bytes") == 8 << 20


def test_a_name_of_two_different_kernels_is_left_out() -> None:
    assert not list(fused_kernels.measured_kernels([kernel_row(DESCRIBED, {**DESCRIBED, "bytes": 1})]))


def test_the_shipped_kernels_that_were_held_out() -> None:
    """Half of them by a hash; over 10 us the median error is what docs/compile.md says."""
    measured = compiled.read(compiled.DATA)
    kernels = list(fused_kernels.measured_kernels(measured["kernels"]))
    held_out = [kernel for kernel in kernels if kernel.held_out]
    assert 0.4 < len(held_out) / len(kernels) < 0.6
    pricer = pricer_of("lab-h200")
    errors = sorted(
        abs((pricer.repeated_ns(k.call) / 1e3 - 0.7) / k.us - 1) for k in held_out if k.us > fused_kernels.LARGE_US
    )
    assert errors[len(errors) // 2] < 0.07


def test_steps_become_cases() -> None:
    row = {"step_ms": 1.0, "busy_ms": 1.0, "num_kernels": 2, "max_allocated_mib": 3.0, "max_reserved_mib": 4.0}
    named = {"model": "gpt2-124m", "batch": 8, "seq": 1024}
    models = [{**row, **named, "mode": "default"}, {**row, **named, "mode": "reduce-overhead"}, {**named, "error": "no"}]
    cases = [each["case"] for each in compiled.case_rows({"models": models})]
    assert cases == ["compiled-gpt2-124m-b8-s1024", "compiled-reduce-overhead-gpt2-124m-b8-s1024"]


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"models": []}))
    with pytest.raises(UserError, match="no result of measure/compile_bench.py"):
        compiled.read(path)


def test_an_unknown_case_is_named() -> None:
    command = [sys.executable, "-m", "phantora.validation", "compiled", "compiled-x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "case compiled-x was not measured (measured: compiled-gpt2-124m-b8-s1024" in done.stderr
