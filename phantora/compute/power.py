"""What kernels draw, so that the power limit of a GPU can lower its clock (engine/clock_governor.py).

Board power = idle + memory + cores. Memory's part goes with the bytes moved, whatever the clock. The cores' part at clock
f is that at the full clock x (f / full) ^ 1.4. A kernel bound by instructions or tensor cores takes full / f times as
long, one bound by memory as long as ever.

Hopper: measured on an H200 (limit 700 W, 1,980 MHz; validation/data/h200/clocks.json: 29 kernels, each alone for seconds,
and 7 mixes). Products of random numbers, alone: 809 TFLOP/s for 40 ms, then 686 at 1,515 MHz and 715 W. In mixes their rate
follows from the time that the streaming kernels leave: 770 TFLOP/s, which is 0.86 of the full clock, with 37 % of the time
for streaming; 707 with 12 %. That gives the exponent.
Ampere: Vidur's A100 (400 W) multiplies float16 matrices at 218 TFLOP/s where a product takes more than 0.8 ms, and at up
to 250 where it takes 0.1 to 0.4 ms (Llama-2-7B's layers, 400 rows); so long products run at 0.87 of the clock of short
ones. Its idle power, its memory's and the shares of tensor cores and SMs are guesses: those of Hopper, scaled.
Of other chips nothing is known: their clock stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from phantora.compute.call import Draw
from phantora.compute.roof import GpuFigures, Roof, capability
from phantora.compute.work import Work


class PowerFigures(GpuFigures, Protocol):
    """The fields of `phantora.cluster.spec.GpuSpec` that power depends on."""

    power_w: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chip:
    """Watts at the full clock, of the whole chip."""

    idle_w: float
    pj_per_byte: float
    tensor_idle_w: float
    """A kernel on tensor cores, beside what the arithmetic takes; its memory traffic is in it."""
    tensor_w: float
    """The arithmetic at the highest rate."""
    attention_w: float
    """What attention takes beyond that: exponentials, and its smaller tiles."""
    vector_w: float
    """Products without tensor cores: float32."""
    rows_w: float
    """Row-wise kernels and transcendental functions."""
    stream_w: float
    """Other kernels that move data; those that only write draw nothing beyond memory's part."""
    other_w: float
    """Kernels bound by neither: a guess."""


_EXPONENT = 1.4
_OVER_LIMIT = 1.015  # the H200 held 693 to 720 W, 711 in the median, where the limit of 700 bound

# idle: 118 W with a context (nvidia-smi). bytes: 3.3 TB/s of fills, which hardly use the cores, draw 221 W.
_HOPPER = _Chip(
    idle_w=120.0, pj_per_byte=67.0, tensor_idle_w=300.0, tensor_w=560.0, attention_w=65.0, vector_w=560.0, rows_w=360.0,
    stream_w=130.0, other_w=300.0,
)  # fmt: skip
_FLOAT16_MORE = 1.05  # H200: 1,425 MHz in float16, 1,515 in bfloat16, both at the limit
_AMPERE_IDLE_W = 80.0
_AMPERE_SHARE = (400.0 * _OVER_LIMIT - _AMPERE_IDLE_W) / (0.87 * 0.9) ** _EXPONENT / (860.0 * _FLOAT16_MORE)
_AMPERE = _Chip(
    idle_w=_AMPERE_IDLE_W, pj_per_byte=67.0, tensor_idle_w=300.0 * _AMPERE_SHARE, tensor_w=560.0 * _AMPERE_SHARE,
    attention_w=65.0 * _AMPERE_SHARE, vector_w=560.0 * _AMPERE_SHARE, rows_w=360.0 * _AMPERE_SHARE,
    stream_w=130.0 * _AMPERE_SHARE, other_w=300.0 * _AMPERE_SHARE,
)  # fmt: skip
# By compute capability and number of SMs: A100; H100 SXM and NVL, H200 (not H100 PCIe, H20).
_CHIPS: dict[tuple[tuple[int, ...], int], _Chip] = {((8, 0), 108): _AMPERE, ((9, 0), 132): _HOPPER}

# Tensor cores at the full clock reach this share of the data sheet's peak: 892 of 989 TFLOP/s (zeros, rested).
_HIGHEST = 0.902
# The clock, as share of the full one, at which prices of products hold (what in_step adds for a step included): 16-bit
# products are priced as on a rested GPU, where they run at 1,690 to 1,790 of 1,980 MHz; the sweeps' TF32 products ran for
# long enough to be throttled.
_PRODUCTS_PRICED_AT, _TF32_PRICED_AT = 0.9, 0.82

_TENSOR_MODELS = ("gemm", "conv", "sdpa", "rnn_chain")
_FILLS = frozenset(("zero_", "fill_"))
_TRANSCENDENTAL = frozenset(
    ("silu", "silu_backward", "gelu", "gelu_backward", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "tanh", "tanh_backward",
     "sigmoid", "sigmoid_backward", "erf", "erfc", "sin", "cos", "tan", "atan", "atan2", "pow", "softplus", "softplus_backward", "mish",
     "mish_backward", "elu", "elu_backward")
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPower:
    """How one GPU's clock follows from what it runs: the limit is kept by lowering the clock."""

    limit_w: float
    """As set."""
    held_w: float
    """What the board draws in the mean when the limit binds."""
    idle_w: float
    exponent: float
    """Power of the cores over the clock."""


def gpu_power(gpu: PowerFigures) -> GpuPower | None:
    """None: the limit or the chip is not known, so the clock stays as it is."""
    chip = _chip(gpu)
    if chip is None or not gpu.power_w:
        return None
    return GpuPower(limit_w=gpu.power_w, held_w=gpu.power_w * _OVER_LIMIT, idle_w=chip.idle_w, exponent=_EXPONENT)


def draw(work: Work, duration_ns: float, gpu: PowerFigures, roof: Roof, slower: float) -> Draw | None:
    """What `work` draws while it runs for `duration_ns`, its price. None: see gpu_power.

    slower: the share of the price that stands for the clock in steps of the measured GPU already (in_step.slower).
    """
    chip = _chip(gpu)
    if chip is None or duration_ns <= 0:
        return None
    moving = min(roof.stream_ns(work.bytes) / duration_ns, 1.0)
    memory_w = moving * roof.bytes_per_ns * chip.pj_per_byte / 1e3  # GB/s x pJ are mW
    # An H200 at 0.985 of its clock slows silu (which moves bytes for 0.86 of its time) by 0.7 %, at 0.992 layer_norm
    # (0.58) by 0.8 %.
    clocked = min(2.0 * (1.0 - moving), 1.0)
    if not _is_on_tensor_cores(work):
        return _rounded(memory_w, _core_w(work, moving, chip), clocked, 1.0 / (1.0 + slower))
    tensor_w, priced_at = _tensor_w(work, duration_ns, chip, roof), _priced_at(work, slower)
    # Memory binds a product of few rows: it draws as streaming does.
    return _rounded(
        memory_w * (1.0 - clocked), tensor_w * clocked + chip.stream_w * (1.0 - clocked), clocked, priced_at
    )


def together(draws: list[tuple[float, Draw | None]]) -> Draw | None:
    """Of kernels that run one after the other: (ns, draw) of each, weighted by time. None when none is known."""
    known = [(ns, found) for ns, found in draws if found is not None and ns > 0]
    total = sum(ns for ns, _ in known)
    if len(known) < 2:
        return known[0][1] if known else None
    clocked_ns = sum(ns * found.clocked for ns, found in known)
    return _rounded(
        sum(ns * found.memory_w for ns, found in known) / total,
        sum(ns * found.core_w for ns, found in known) / total,
        clocked_ns / total,
        sum(ns * found.clocked * found.priced_at for ns, found in known) / clocked_ns if clocked_ns else 1.0,
    )


def _is_on_tensor_cores(work: Work) -> bool:
    return work.model in _TENSOR_MODELS and _dtype(work) not in ("float32", "float64")


def _dtype(work: Work) -> str:
    return work.curves[0].split("/")[4 if work.model in ("sdpa", "conv") else -1]


def _tensor_w(work: Work, duration_ns: float, chip: _Chip, roof: Roof) -> float:
    dtype = _dtype(work)
    highest = roof.flops_per_ns(dtype) * _HIGHEST * _priced_at(work, 0.0)
    watts = chip.tensor_idle_w + chip.tensor_w * min(work.flops / duration_ns / highest, 1.0)
    return watts * (_FLOAT16_MORE if dtype == "float16" else 1.0) + (chip.attention_w if work.model == "sdpa" else 0.0)


def _priced_at(work: Work, slower: float) -> float:
    if work.model == "sdpa":
        return 1.0 / (1.0 + slower)
    return _TF32_PRICED_AT if _dtype(work) == "tf32" else _PRODUCTS_PRICED_AT


def _core_w(work: Work, moving: float, chip: _Chip) -> float:
    """Watts of the cores in kernels without tensor cores."""
    words = work.curves[0].split("/")
    if work.model in _TENSOR_MODELS:
        return chip.vector_w
    if work.model == "rows" or words[2 if work.model == "stream" else 1] in _TRANSCENDENTAL:
        return chip.rows_w
    if words[-2] in _FILLS or words[-1] in _FILLS:
        return 0.0
    return chip.stream_w if moving > 0.5 else chip.other_w


def _rounded(memory_w: float, core_w: float, clocked: float, priced_at: float) -> Draw:
    """To what matters, which is also short in a trace."""
    return Draw(round(memory_w, 1), round(core_w, 1), round(clocked, 3), round(priced_at, 3))


def _chip(gpu: PowerFigures) -> _Chip | None:
    return _CHIPS.get((capability(gpu.compute_capability), gpu.num_sms))
