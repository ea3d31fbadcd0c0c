"""What tells a kernel in a training step from the same kernel in a benchmark that repeats it.

Measured times (the table) are those of a benchmark: inputs cold, the GPU at full clock, the same kernel over and over.
In a step

* part of what a pointwise kernel reads was written by the kernel before it and lies in L2 still;
* the GPU meets its power limit (700 W): an H200 that trains a Llama runs at 1,700 to 1,800 of 1,980 MHz, so kernels
  that are bound by instructions or tensor cores slow down, those bound by memory do not;
* kernels of different kinds do not overlap at their ends, and the gap between two is longer (roof.STEP_GAP_NS).

Figures: profiled steps of the H200 (GPT-2, Llama, ResNet-50, DLRM, GAT), `validation/data/h200/power.json`, gaps.json.
"""

from __future__ import annotations

import math

from phantora.compute.roof import LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work

# Pointwise kernels save 5 to 15 MB of traffic: a fifth of small traffic, a sixth of L2 at most. Fills read nothing;
# casts and gates with much arithmetic are not faster in a step than in the benchmark.
_WARM_SHARE, _WARM_L2_SHARE = 0.2, 0.16
_NOT_WARM = ("zero_", "silu", "silu_backward", "gelu", "gelu_backward")

# Kernels with an offset calculator take 3 to 5 % (4-byte elements) and 5 to 12 % (2-byte) longer in steps of Llamas:
# 9 % of what their instructions take, which is 1,980 over 1,816 MHz.
_INSTRUCTIONS_SLOWER = 0.09

# Products alone run 12 % slower under sustained load than in a burst, with 28 % of streaming kernels between them 5 %,
# with 45 % none (power.json). In steps of Llamas products are half to two thirds of the time; steps that repeat take
# 2 to 3 % longer than their profiled kernels and gaps. Short products come in small models, far from the limit.
_PRODUCTS_SLOWER = 0.04
_SHORT_NS, _LONG_NS = 100e3, 400e3

# cuDNN attention with heads of 128, of all kernels the one that loses most: 1.59 ms a call in steps of a Llama-2 for
# 1.43 ms in the benchmark backward, 0.477 for 0.462 forward.
_WIDE_HEADS = 128
_ATTENTION_SLOWER = {"forward": 0.03, "backward": 0.11}

# Sums over rows end in a second pass of their last blocks; alone in a profile they take 4 to 5 us longer than in a
# queue of the same (median of 183 rows of the sweeps), 2 to 6 us in steps of GPT-2 and BERT.
_OUTER_ALONE_NS, _OUTER_ALONE_SHARE = 5000.0, 0.2

# Clocks of other generations were not measured; under load an A100's products lose as much as an H200's do (13 and 15 %,
# see power.py), so in steps they are taken to lose as much as there.
_A100, _HOPPER = (8, 0), 9


def in_step_ns(work: Work, cold_ns: float, roof: Roof) -> float:
    """Time of `work` in a step, without its gaps, that takes `cold_ns` in a benchmark."""
    if work.model == "stream":
        return max(cold_ns - warm_ns(work.curves[0], work.at, roof) * work.scale, min(cold_ns, LAUNCH_FLOOR_NS))
    if work.curves[0].startswith("reduce/outer"):
        return cold_ns + min(_OUTER_ALONE_SHARE * cold_ns, _OUTER_ALONE_NS)
    return cold_ns * (1.0 + slower(work, cold_ns, roof))


def warm_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """What streaming `at` = (bytes,) saves because its inputs are partly in L2."""
    name = curve.split("/")[2]
    if name in _NOT_WARM or name.endswith("_all") or "float" in name:
        return 0.0
    return roof.stream_ns(min(_WARM_SHARE * at[0], _WARM_L2_SHARE * roof.l2_bytes))


def slower(work: Work, cold_ns: float, roof: Roof) -> float:
    """By which share the power limit lengthens `work`; 0 where memory binds it."""
    curve = work.curves[0]
    if curve.startswith("gemm/half/aligned") and (roof.capability == _A100 or roof.generation == _HOPPER):
        return _PRODUCTS_SLOWER * _length(cold_ns)
    if roof.generation != _HOPPER:
        return 0.0
    if curve.startswith(("items/offsets", "items/cast_offsets")):
        moving = min(roof.stream_ns(work.bytes) / max(cold_ns, 1.0), 1.0)
        return _INSTRUCTIONS_SLOWER * (1.0 - 0.5 * moving)
    if curve.startswith("sdpa/") and "/cudnn/" in curve and work.at[3] >= _WIDE_HEADS:
        return _ATTENTION_SLOWER[curve.split("/")[1]] * _length(cold_ns)
    return 0.0


def _length(ns: float) -> float:
    """0 for kernels too short to meet the power limit, 1 for long ones, linear in the logarithm between."""
    share = math.log(max(ns, 1.0) / _SHORT_NS) / math.log(_LONG_NS / _SHORT_NS)
    return min(max(share, 0.0), 1.0)
