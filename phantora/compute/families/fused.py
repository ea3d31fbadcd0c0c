"""Kernels that a compiler fused from many operators (Inductor's Triton kernels under torch.compile).

A call named 'fused::triton_per_fused_...' carries what its price depends on: kind, bytes (every external input and
output once), rows and columns (iteration space), instructions per element (intercept/compiled/source.py) and accesses
per element (intercept/compiled/accesses.py). Kinds: pointwise; persistent: a row's elements stay in registers; mixed:
persistent, and partial sums of the columns beside it; looped: a block walks each row; outer: columns are summed;
foreach: many small parts side by side; template.

Model: traffic at the streaming rate, with a ramp for what does not fill the memory pipeline, and instructions at the
rate of the SMs; a norm of the two says how well one hides the other: almost fully without a reduction, less the more
often threads wait for each other. Fitted by least squares of logarithms to the Triton kernels of the part `kernels` of
validation/data/h200/compile.json.gz (one H200, torch 2.11, Triton 3.6), the half of them that `python -m
phantora.validation compiled --kernels` calls fitted; it prints the errors of the other half and of the training steps.
Not from that half, which has none of them: loads far apart (Llama's rotary embedding in the training steps; BERT's transposed
loads take more), stores far apart (a sector of 32 bytes each at 6 TB/s: an estimate), gathers in a single row (the loss).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from phantora.compute.call import OpCall
from phantora.compute.roof import KERNEL_GAP_NS, Roof
from phantora.compute.work import Work

FAMILY = "fused"
PREFIX = "fused::"
WEIGHTS = (0.4, 0.4, 0.2, 0.2)

# On 132 SMs of 128 lanes at 1.75 GHz: 30e12 slots, some of which hold two (fused multiply-add).
_INSTRUCTIONS_PER_S = 39e12
_ATOMIC_PER_S = 0.3e12  # additions into memory: a scattered gradient of 6.3 million elements takes 20 us more
# Made of many instructions whatever the kind: tanh, sin; Philox is ten rounds of eight and the conversion to a float.
_HEAVY, _RANDOM = 37.0, 128.0
_FAR_STORE, _FAR_LOAD = 200.0, 20.0  # neighbouring iterations find a loaded sector in L1
_ALIGNMENT = 16  # rows of other lengths begin at addresses that no vector load takes
_BLOCK = 2048  # elements of a row that a block takes at once
_GATHER_STEPS = 20  # of _STEP_NS: two dependent misses


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """Of one kind. Times in ns; weights in instructions per element; tightness: exponent of the norm."""

    fixed_ns: float
    ramp_ns: float
    tightness: float
    plain: float
    special: float
    access: float
    unaligned: float = 0.0
    strided: float = 0.0
    tile: float = 0.0
    division: float
    row: float = 0.0
    """Per row and reduction: threads exchange partial results."""
    streaming: float = 1.0
    """Share of the streaming rate."""


_STEP_NS = 100.0  # one block of a row after the other, when there is nothing beside it
_RAMP_TAU_NS = 1500.0
_POINTWISE = _Rates(
    fixed_ns=1370, ramp_ns=820, tightness=3.9, plain=0.57, special=11, access=1.1, strided=1.9, tile=34, division=4.7
)
_PERSISTENT = _Rates(
    fixed_ns=1490, ramp_ns=740, tightness=1.6, plain=0.35, special=9.8, access=0.76, unaligned=7.8, division=2, row=20
)
_MIXED = dataclasses.replace(_PERSISTENT, streaming=0.87)
_LOOPED = _Rates(
    fixed_ns=900, ramp_ns=2590, tightness=4.4, plain=1.05, special=16, access=5.8, unaligned=9.1, division=10, row=20
)
_OUTER = _Rates(fixed_ns=1930, ramp_ns=380, tightness=3.3, plain=0.68, special=5, access=15, division=2, row=25)
_BY_KIND = {"persistent": _PERSISTENT, "mixed": _MIXED, "looped": _LOOPED, "outer": _OUTER}
KINDS = ("pointwise", "persistent", "mixed", "looped", "outer", "foreach", "template")


def describe(call: OpCall) -> tuple[Work, ...]:
    kind = str(call.arg("kind"))
    rates = _BY_KIND.get(kind, _POINTWISE)
    growth = _number(call, "growth_percent", 100) / 100
    columns = max(_number(call, "columns"), 1)
    rows = max(round(max(_number(call, "rows"), 1) * growth), 1)
    weight = _weight(call, rates, columns)
    executed = rows * (weight * _padded(kind, columns) + rates.row * _number(call, "reductions"))
    if call.arg("atomic"):
        executed += rows * columns * _INSTRUCTIONS_PER_S / _ATOMIC_PER_S
    steps = _number(call, "sweeps") * -(-columns // _BLOCK) * (_GATHER_STEPS if _number(call, "gathers") else 1)
    moved = _number(call, "bytes")
    return (
        Work(
            family=FAMILY,
            curves=(f"fused/{kind}",),
            at=(max(moved, 1), max(round(executed), 1), rows, max(steps, 1)),
            flops=round(rows * columns * weight),
            bytes=moved,
        ),
    )


def _weight(call: OpCall, rates: _Rates, columns: int) -> float:
    """Instructions per element of the iteration space."""
    accesses = _number(call, "near") + _number(call, "gathers")
    access = rates.access + (rates.unaligned if columns % _ALIGNMENT else 0.0)
    return (
        rates.plain * _number(call, "plain")
        + rates.special * _number(call, "special")
        + _HEAVY * _number(call, "heavy")
        + _RANDOM * _number(call, "random")
        + access * accesses
        + rates.strided * _number(call, "strided")
        + _FAR_LOAD * _number(call, "far_loads")
        + _FAR_STORE * _number(call, "far_stores")
        + rates.tile * _number(call, "tiles")
        + rates.division * _number(call, "divisions")
    )


def _padded(kind: str, columns: int) -> int:
    """Columns for which instructions are issued: the next power of two where a row is one block, whole blocks else."""
    row = 1 << (columns - 1).bit_length()
    if kind in ("persistent", "mixed"):
        return row
    block = min(row, _BLOCK)
    return -(-columns // block) * block if kind == "looped" else columns


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a fused kernel `at` (bytes, instructions, rows, blocks of a row): the module's text."""
    moved, executed, rows, steps = at
    kind = curve.partition("/")[2]
    rates = _BY_KIND.get(kind, _POINTWISE)
    traffic_ns = roof.stream_ns(moved)
    traffic_ns = (traffic_ns + rates.ramp_ns * (1 - math.exp(-traffic_ns / _RAMP_TAU_NS))) / rates.streaming
    compute_ns = roof.items_ns(executed, _INSTRUCTIONS_PER_S)
    waiting_ns = 0.0
    if kind == "looped":  # a row is one block's, and an SM needs two blocks to be busy
        compute_ns /= min(1.0, rows / (2 * roof.num_sms))
        waiting_ns = steps * _STEP_NS
    power = rates.tightness
    return rates.fixed_ns + KERNEL_GAP_NS + (traffic_ns**power + compute_ns**power + waiting_ns**power) ** (1 / power)


def _number(call: OpCall, name: str, default: int = 0) -> int:
    value = call.arg(name, default)
    assert isinstance(value, int)
    return value
