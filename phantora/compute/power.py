"""What kernels draw, so that the power limit of a GPU can lower its clock (engine/clock_governor.py).

Board power = idle + memory + cores. Memory's part goes with the bytes moved, whatever the clock. The cores' part at clock
f is that at the full clock x (f / full) ^ 1.4. A kernel bound by instructions or tensor cores takes full / f times as
long, one bound by memory as long as ever.

Hopper: measured on an H200 (700 W, 1,980 MHz; validation/data/h200/clocks.json: 35 kinds of kernels, each alone for
seconds, and mixes). Products of random numbers, alone: 809 TFLOP/s for 40 ms, then 686 at 1,515 MHz and 715 W; with
37 % of the time for streaming between them 770 at 1,705 MHz, which gives the exponent.
Ampere: Vidur's A100 (400 W) multiplies float16 matrices at 218 TFLOP/s where a product takes more than 0.8 ms, and at up
to 250 where it takes 0.1 to 0.4 ms (Llama-2-7B's layers, 400 rows); so long products run at 0.87 of the clock of short
ones. The shares of tensor cores, SMs and memory are taken to be those of Hopper.
Of other generations nothing is known: their clock stays, and the run's notes say so.
"""

from __future__ import annotations

from dataclasses import dataclass

from phantora.compute.call import Draw
from phantora.compute.roof import GpuFigures, Roof
from phantora.compute.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chip:
    """Watts at the full clock, of a whole chip of `num_sms` SMs."""

    num_sms: int
    idle_w: float
    pj_per_byte: float
    tensor_idle_w: float
    """A kernel on tensor cores, beside what the arithmetic takes; its memory traffic is in it."""
    tensor_w: float
    """The arithmetic at the highest rate."""
    attention_w: float
    """What attention takes beyond that: exponentials, and its smaller tiles."""
    math_w: float
    """Cores in row-wise kernels and those with transcendental functions."""
    stream_w: float
    """Cores in kernels that move data."""
    other_w: float


_EXPONENT = 1.4
_OVER_LIMIT = 1.015  # the H200 held 700 to 718 W, 711 in the median, at a limit of 700

_HOPPER = _Chip(
    num_sms=132, idle_w=120.0, pj_per_byte=67.0, tensor_idle_w=300.0, tensor_w=560.0, attention_w=65.0, math_w=390.0,
    stream_w=130.0, other_w=300.0,
)  # fmt: skip
_FLOAT16_MORE = 1.05  # H200: 1,425 MHz in float16, 1,515 in bfloat16, both at the limit
_AMPERE_SHARE = (400.0 * _OVER_LIMIT - 80.0) / (0.87 * 0.9) ** _EXPONENT / (860.0 * _FLOAT16_MORE)
_AMPERE = _Chip(
    num_sms=108, idle_w=80.0, pj_per_byte=67.0, tensor_idle_w=300.0 * _AMPERE_SHARE, tensor_w=560.0 * _AMPERE_SHARE,
    attention_w=65.0 * _AMPERE_SHARE, math_w=390.0 * _AMPERE_SHARE, stream_w=130.0 * _AMPERE_SHARE,
    other_w=300.0 * _AMPERE_SHARE,
)  # fmt: skip
_CHIPS = {(8, 0): _AMPERE, (9, 0): _HOPPER}

# Tensor cores at the full clock reach this share of the data sheet's peak: 892 of 989 TFLOP/s (zeros, 1,980 MHz).
_HIGHEST = 0.904
# The clock, as share of the full one, at which prices of products hold: 16-bit products are priced as on a rested GPU,
# where they run at 1,690 to 1,790 of 1,980 MHz; the sweeps' TF32 products ran for long enough to be throttled.
_PRODUCTS_PRICED_AT, _TF32_PRICED_AT = 0.9, 0.82

_TENSOR_MODELS = ("gemm", "conv", "sdpa", "rnn_chain")
_MATH = ("silu", "gelu", "exp", "tanh", "sigmoid", "erf", "log", "sin", "cos", "pow", "softmax", "norm")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPower:
    """How one GPU's clock follows from what it runs: the limit is kept by lowering the clock."""

    limit_w: float
    idle_w: float
    exponent: float
    """Power of the cores over the clock."""


def gpu_power(gpu: GpuFigures) -> GpuPower | None:
    """None: the limit or the chip is not known, so the clock stays as it is."""
    chip, limit_w = _chip(gpu), float(getattr(gpu, "power_w", 0.0))
    if chip is None or not limit_w:
        return None
    return GpuPower(limit_w=limit_w * _OVER_LIMIT, idle_w=chip.idle_w, exponent=_EXPONENT)


def draw(work: Work, duration_ns: float, gpu: GpuFigures, roof: Roof, slower: float) -> Draw | None:
    """What `work` draws while it runs for `duration_ns`, its price. None: see gpu_power.

    slower: the share of the price that stands for the clock in steps of the measured GPU already (in_step.slower).
    """
    chip = _chip(gpu)
    if chip is None or duration_ns <= 0:
        return None
    size = roof.num_sms / chip.num_sms
    dtype = work.curves[0].split("/")[4 if work.model in ("sdpa", "conv") else -1]
    if work.model in _TENSOR_MODELS and dtype not in ("float32", "float64"):
        priced_at = 1.0 / (1.0 + slower) if work.model == "sdpa" else _priced_at(dtype)
        highest = roof.flops_per_ns(dtype) * _HIGHEST * priced_at
        core_w = chip.tensor_idle_w + chip.tensor_w * min(work.flops / duration_ns / highest, 1.0)
        core_w *= _FLOAT16_MORE if dtype == "float16" else 1.0
        return _rounded(0.0, (core_w + chip.attention_w * (work.model == "sdpa")) * size, 1.0, priced_at)
    moving = min(roof.stream_ns(work.bytes) / duration_ns, 1.0)
    memory_w = moving * roof.bytes_per_ns * chip.pj_per_byte / 1e3  # GB/s x pJ are mW
    clocked = 1.0 - moving if moving < 0.5 else (1.0 - moving) / 2
    return _rounded(memory_w, _vector_w(work, moving, chip) * size, clocked, 1.0)


def _rounded(memory_w: float, core_w: float, clocked: float, priced_at: float) -> Draw:
    """To what matters, which is also short in a trace."""
    return Draw(round(memory_w, 1), round(core_w, 1), round(clocked, 3), round(priced_at, 3))


def _priced_at(dtype: str) -> float:
    return _TF32_PRICED_AT if dtype == "tf32" else _PRODUCTS_PRICED_AT


def _vector_w(work: Work, moving: float, chip: _Chip) -> float:
    """Watts of kernels without tensor cores."""
    if any(word in work.curves[0] for word in _MATH):
        return chip.math_w
    return chip.stream_w if moving > 0.5 else chip.other_w


def _chip(gpu: GpuFigures) -> _Chip | None:
    capability = gpu.compute_capability
    key = tuple(map(int, capability.split("."))) if isinstance(capability, str) else tuple(capability)
    return _CHIPS.get(key)


def together(draws: list[tuple[float, Draw | None]]) -> Draw | None:
    """Of kernels that run one after the other: (ns, draw) of each, weighted by time. None when none is known."""
    known = [(ns, found) for ns, found in draws if found is not None and ns > 0]
    total = sum(ns for ns, _ in known)
    if not known:
        return None
    if len(known) == 1:
        return known[0][1]
    clocked_ns = sum(ns * found.clocked for ns, found in known)
    return _rounded(
        sum(ns * found.memory_w for ns, found in known) / total,
        sum(ns * found.core_w for ns, found in known) / total,
        clocked_ns / total,
        sum(ns * found.clocked * found.priced_at for ns, found in known) / clocked_ns if clocked_ns else 1.0,
    )
