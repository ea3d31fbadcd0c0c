"""Kernels that a compiler fused from many operators (Inductor's Triton kernels under torch.compile).

A call named 'fused::triton_per_fused_...' carries what its price depends on: kind (pointwise; persistent: a row's
elements stay in registers; looped: rows are walked; foreach: many small parts side by side; template), bytes (every
external input and output once), rows and columns (iteration space), and per element plain arithmetic instructions,
special functions of the hardware (exp, rsqrt, a division), heavy ones that are made of many instructions (tanh, erf,
pow) and random numbers.

Model: traffic at the streaming rate, and instructions at the rate of the SMs. A pointwise kernel has enough
independent elements to hide one behind the other (the greater counts); in a reduction the threads of a row wait for
each other (both count). Fitted to the 60 distinct Triton kernels of one compiled training step (GPT-2 124M, 8 x 1024
tokens, torch 2.11, H200): tanh forward and backward (35 and 44 us on 25 million elements) give the rate and the
weight of heavy functions, the two softmax kernels over 50,257 columns (688 and 818 us) that of special ones, layer
norms with and without dropout that of a random number (Philox: ten rounds of eight instructions).
"""

from __future__ import annotations

from phantora.compute.call import OpCall
from phantora.compute.roof import KERNEL_GAP_NS, Roof
from phantora.compute.work import Work

FAMILY = "fused"
PREFIX = "fused::"
WEIGHTS = (0.4, 0.4)

_INSTRUCTIONS = {"plain": 1, "special": 19, "heavy": 41, "random": 80}
# On 132 SMs of 128 lanes at 1.75 GHz: 30e12 slots, some of which hold two (fused multiply-add).
_INSTRUCTIONS_PER_S = 39e12
_FIXED_NS = 1100 + KERNEL_GAP_NS  # a kernel on a few hundred elements
_ATOMIC_PER_S = 0.3e12  # additions into memory: a scattered gradient of 6.3 million elements takes 20 us more


def describe(call: OpCall) -> tuple[Work, ...]:
    kind = str(call.arg("kind"))
    growth = _number(call, "growth_percent", 100) / 100
    columns = max(_number(call, "columns"), 1)
    elements = round(max(_number(call, "rows"), 1) * growth) * columns
    weight = sum(each * _number(call, name) for name, each in _INSTRUCTIONS.items())
    executed = elements * weight
    if kind == "persistent":  # a block has as many threads as the next power of two
        executed = executed * (1 << (columns - 1).bit_length()) // columns
    if call.arg("atomic"):
        executed += round(elements * _INSTRUCTIONS_PER_S / _ATOMIC_PER_S)
    moved = _number(call, "bytes")
    return (
        Work(
            family=FAMILY,
            curves=(f"fused/{kind}",),
            at=(max(moved, 1), max(executed, 1)),
            flops=elements * weight,
            bytes=moved,
        ),
    )


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a fused kernel `at` (bytes, instructions): the module's text."""
    traffic_ns, compute_ns = roof.stream_ns(at[0]), roof.items_ns(at[1], _INSTRUCTIONS_PER_S)
    if curve.endswith(("persistent", "looped")):
        return _FIXED_NS + traffic_ns + compute_ns
    return _FIXED_NS + max(traffic_ns, compute_ns)


def _number(call: OpCall, name: str, default: int = 0) -> int:
    value = call.arg(name, default)
    assert isinstance(value, int)
    return value
