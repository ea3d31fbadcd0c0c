"""Power of kernels on an H200, against nvidia-smi while they ran alone (validation/data/h200/clocks.json)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from phantora.cluster import load_cluster
from phantora.cluster.spec import GpuSpec
from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.power import gpu_power
from phantora.compute.pricer import Pricer
from phantora.engine.clock_governor import ClockGovernor

ROWS = json.loads((Path(__file__).resolve().parents[2] / "validation/data/h200/clocks.json").read_text())
CASES = {row["case"]: row for row in ROWS}


def tensor(*shape: int, dtype: str = "bfloat16", is_transposed: bool = False) -> TensorSpec:
    stride, size = [], 1
    for length in reversed(shape):
        stride.insert(0, size)
        size *= length
    return TensorSpec(shape, (1, shape[0]) if is_transposed else tuple(stride), dtype)


def product(case: str) -> OpCall:
    m, k, n, dtype = re.fullmatch(r"mm (\d+)x(\d+)x(\d+) (\w+)", case).groups()  # type: ignore[union-attr]
    kind = "float32" if dtype == "tf32" else dtype
    sides = (("self", tensor(int(m), int(k), dtype=kind)), ("mat2", tensor(int(k), int(n), dtype=kind, is_transposed=True)))
    return OpCall("aten::mm", args=sides, outputs=(tensor(int(m), int(n), dtype=kind),), flags=(("allow_tf32", dtype == "tf32"),))


def attention(case: str) -> OpCall:
    backend, shape, direction = re.fullmatch(r"(\w+)_attention (\S+) (\w+)", case).groups()  # type: ignore[union-attr]
    q = tensor(*map(int, re.sub(r"^(\d+)x(\d+)x", r"\1x\2x", shape).split("x")))
    operands = (("query", q), ("key", q), ("value", q), ("is_causal", True))
    name = f"aten::_scaled_dot_product_{backend}_attention"
    if direction == "forward":
        return OpCall(name, args=operands, outputs=(q,))
    return OpCall(f"{name}_backward", args=(("grad_out", q), *operands, ("out", q)), outputs=(q, q, q))


def settled(call: OpCall, gpu: GpuSpec) -> tuple[float, float]:
    """(clock as share of the full one, us of a call) after seconds of nothing else."""
    price = Pricer(gpu, load_cluster("lab-h200").host).price(call)
    power = gpu_power(gpu)
    assert power is not None and price.draw is not None
    draw = price.draw
    governor, taken_ns = ClockGovernor(power), 0
    for _ in range(int(1e9 / price.duration_ns) + 2):
        taken_ns = governor.duration_ns((draw.memory_w, draw.core_w, draw.clocked, draw.priced_at), price.duration_ns, 0)
    return governor.clock, taken_ns / 1e3


@pytest.mark.parametrize("case", [c for c in CASES if c.startswith("mm ") and "zeros" not in c and "float8" not in c and "float32" not in c])
def test_products_settle_as_measured(case: str) -> None:
    clock, us = settled(product(case), load_cluster("lab-h200").gpu)
    assert us == pytest.approx(CASES[case]["us"], rel=0.08)
    assert clock == pytest.approx(CASES[case]["clock_mhz"] / 1980, abs=0.1)


@pytest.mark.parametrize("case", [c for c in CASES if "attention" in c])
def test_attention_settles_as_measured(case: str) -> None:
    clock, us = settled(attention(case), load_cluster("lab-h200").gpu)
    assert us == pytest.approx(CASES[case]["us"], rel=0.08)
    assert clock == pytest.approx(CASES[case]["clock_mhz"] / 1980, abs=0.1)


def test_a_pointwise_kernel_keeps_the_clock() -> None:
    x = tensor(1 << 27)
    clock, us = settled(OpCall("aten::add", args=(("self", x), ("other", x)), outputs=(x,)), load_cluster("lab-h200").gpu)
    assert clock == 1.0
    assert us == pytest.approx(CASES["add 2^27"]["us"], rel=0.05)


def test_long_products_of_an_a100() -> None:
    """Vidur (validation vidur): 218 TFLOP/s in the median of Llama-2-7B's products beyond 0.8 ms, float16."""
    _, us = settled(product("mm 4096x4096x22016 float16"), load_cluster("dgx-a100-80g").gpu)
    assert 2 * 4096 * 4096 * 22016 / us / 1e6 == pytest.approx(218, rel=0.04)


def test_500_watts_cost_a_quarter_of_the_products() -> None:
    _, at_700 = settled(product("mm 8192x8192x8192 bfloat16"), load_cluster("dgx-h100").gpu)
    _, at_500 = settled(product("mm 8192x8192x8192 bfloat16"), load_cluster("grand-teton-h100").gpu)
    assert 1.2 < at_500 / at_700 < 1.5


def test_chips_that_were_not_measured_keep_their_clock() -> None:
    gpu = load_cluster("dgx-b200").gpu
    assert gpu_power(gpu) is None
    x = tensor(1024)
    assert Pricer(gpu, load_cluster("dgx-b200").host).price(OpCall("aten::add", args=(("self", x), ("other", x)), outputs=(x,))).draw is None
