"""Power of kernels on an H200, against nvidia-smi while they ran alone (validation/data/h200/clocks.json)."""

from __future__ import annotations

import json
import re
from dataclasses import astuple, replace
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


def streaming(case: str) -> OpCall | None:
    """The call of a kernel that moves data; None: another kind of case."""
    x, square = tensor(1 << 27), tensor(16384, 4096)
    weight, wide = tensor(4096), tensor(8192, 32768)
    calls = {
        "fill 2^27": OpCall("aten::fill_", args=(("self", x), ("value", 0.5)), mutated=("self",)),
        "add 2^27": OpCall("aten::add", args=(("self", x), ("other", x)), outputs=(x,)),
        "copy 2^27": OpCall("memcpy_d2d", args=(("self", x), ("src", x)), mutated=("self",)),
        "silu 16384x4096": OpCall("aten::silu", args=(("self", square),), outputs=(square,)),
        "layer_norm 16384x4096": OpCall(
            "aten::native_layer_norm", args=(("input", square), ("normalized_shape", (4096,)), ("weight", weight), ("bias", weight)),
            outputs=(square, tensor(16384, 1, dtype="float32"), tensor(16384, 1, dtype="float32")),
        ),
        "softmax 8192x32768": OpCall("aten::_softmax", args=(("self", wide), ("dim", -1)), outputs=(wide,)),
        "cast 16384x4096 float32 bfloat16": OpCall(
            "aten::copy_", args=(("self", square), ("src", tensor(16384, 4096, dtype="float32"))), mutated=("self",)
        ),
    }  # fmt: skip
    return calls.get(case)


def call_of(case: str) -> OpCall | None:
    if re.fullmatch(r"mm \d+x\d+x\d+ (bfloat16|float16|tf32|float32)", case):
        return product(case)
    return attention(case) if "attention" in case else streaming(case)


KNOWN = [case for case in CASES if call_of(case) is not None]


def settled(call: OpCall, gpu: GpuSpec) -> tuple[float, float, float]:
    """(clock as share of the full one, us of a call, W of the board) after a second of nothing else."""
    price = Pricer(gpu, load_cluster("lab-h200").host).price(call)
    power = gpu_power(gpu)
    assert power is not None and price.draw is not None
    governor, taken_ns, fields = ClockGovernor(power), 0, astuple(price.draw)
    for _ in range(int(1e9 / price.duration_ns) + 2):
        taken_ns = governor.duration_ns(fields, price.duration_ns, 0)
    memory_ws = price.draw.memory_w * price.duration_ns / taken_ns
    return governor.clock, taken_ns / 1e3, power.idle_w + memory_ws + price.draw.core_w * governor.clock**power.exponent


@pytest.mark.parametrize("case", KNOWN)
def test_kernels_settle_as_measured(case: str) -> None:
    """Time of a loop of one kernel (prices are those of steps: products of few rows and attention differ by some %), clock and power."""
    call = call_of(case)
    assert call is not None
    clock, us, watts = settled(call, load_cluster("lab-h200").gpu)
    row = CASES[case]
    assert us == pytest.approx(row["us"], rel=0.12)
    assert clock == pytest.approx(row["clock_mhz"] / 1980, abs=0.1)
    assert watts == pytest.approx(row["power_w"], rel=0.12)


def test_most_kinds_were_compared() -> None:
    assert len(KNOWN) == 25


def test_a_copy_to_the_host_has_no_part_in_it() -> None:
    gpu, x = load_cluster("lab-h200").gpu, tensor(1 << 20)
    call = OpCall("memcpy_d2h", args=(("self", x), ("src", x), ("pinned", True), ("non_blocking", True)), mutated=("self",))
    assert Pricer(gpu, load_cluster("lab-h200").host).price(call).draw is None


def test_memory_binds_products_of_few_rows() -> None:
    """Decoding reads its weights once: no clock changes that."""
    draw = Pricer(load_cluster("lab-h200").gpu, load_cluster("lab-h200").host).price(product("mm 1x8192x8192 bfloat16")).draw
    assert draw is not None and draw.clocked < 0.4


def test_long_products_of_an_a100() -> None:
    """Vidur (validation vidur): 218 TFLOP/s in the median of Llama-2-7B's products beyond 0.8 ms, float16."""
    _, us, _ = settled(product("mm 4096x4096x22016 float16"), load_cluster("dgx-a100-80g").gpu)
    assert 2 * 4096 * 4096 * 22016 / us / 1e6 == pytest.approx(218, rel=0.04)


def test_500_watts_cost_a_third_of_the_products() -> None:
    _, at_700, _ = settled(product("mm 8192x8192x8192 bfloat16"), load_cluster("dgx-h100").gpu)
    _, at_500, _ = settled(product("mm 8192x8192x8192 bfloat16"), load_cluster("grand-teton-h100").gpu)
    assert at_500 / at_700 == pytest.approx(1.35, abs=0.1)


@pytest.mark.parametrize("cluster,sms", [("dgx-b200", None), ("dgx-h100", 114), ("rtx3090-ethernet", None)])
def test_chips_that_were_not_measured_keep_their_clock(cluster: str, sms: int | None) -> None:
    """Blackwell; an H100 PCIe; a GA102."""
    found = load_cluster(cluster)
    gpu = found.gpu if sms is None else replace(found.gpu, num_sms=sms)
    assert gpu_power(gpu) is None
    assert Pricer(gpu, found.host).price(product("mm 1024x1024x1024 bfloat16")).draw is None
