"""_foreach_* and fused optimizers: multi_tensor_apply over lists of tensors.

A launch takes at most 320 blocks of 65,536 elements and, by the number of lists, 110, 64, 48, 36 or 30 tensors
(ATen/native/cuda/MultiTensorApply.cuh).
"""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.roof import KERNEL_GAP_NS, Roof
from phantora.compute.work import Work, base_name, ceil_div, item_bytes, nbytes, numel, tensors_in

FAMILY = "foreach"
OPTIMIZER_FAMILY = "optimizer"
WEIGHTS = (0.45, 0.45)

# Share of the streaming rate: 320 blocks reach 0.87; with 2-byte elements conversions to float and back take longer
# than the traffic (1.9 GB of bfloat16 scaled in 689 us, two lists of 2.9 GB added in 865 us, norms of 0.97 GB in 437
# us); by how often an element is read or written.
_RATE, _RATE_2_BYTES, _NORM_RATE_2_BYTES = 0.87, {2: 0.65, 3: 0.77}, 0.51

_CHUNK = 65536
_MAX_BLOCKS = 320
_MAX_TENSORS = (110, 64, 48, 36, 30)

# Lists read and written once each per element: the traffic of an in-place update.
# fmt: off
_LIKE = {
    "add": "_foreach_add_", "sub": "_foreach_add_", "mul": "_foreach_mul_", "div": "_foreach_mul_",
    "lerp": "_foreach_lerp_", "addcmul": "_foreach_addcmul_", "addcdiv": "_foreach_addcdiv_", "sqrt": "_foreach_sqrt",
    "norm": "_foreach_norm",
}
_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_", "_fused_adam", "_fused_adamw",
          "_fused_sgd", "_fused_adagrad")
# fmt: on
_SCALER = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_")
NAMES = _FUSED + _SCALER  # and every name that begins with _foreach_


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    lists = [group for key, value in call.args if not _repeats(call, key) and (group := tuple(tensors_in(value)))]
    if not lists or not any(numel(t) for t in lists[0]):
        return ()
    big = [group for group in lists if sum(map(numel, group)) >= sum(map(numel, lists[0])) // 2]
    outputs = 0 if call.mutated else sum(map(nbytes, call.outputs))
    mutated = {key for key in call.mutated}
    stored = sum(nbytes(t) for key, value in call.args if key in mutated for t in tensors_in(value))
    moved = sum(nbytes(t) for group in lists for t in group) + (outputs or (stored if "norm" not in name else 0))
    depth = len(big) + (1 if outputs and "norm" not in name else 0)
    kernels = num_launches([numel(t) for t in lists[0]], depth) + (1 if "norm" in name else 0)
    family = OPTIMIZER_FAMILY if name in _FUSED else FAMILY
    return (
        Work(
            family=family,
            curves=_curves(name, lists[0][0], depth),
            at=(max(moved, 1), kernels),
            flops=_flops_per_element(name) * sum(map(numel, lists[0])),
            bytes=moved,
            num_kernels=kernels,
        ),
    )


def _repeats(call: OpCall, key: str) -> bool:
    """Adam squares gradients with addcmul(v, g, g): the second g comes from the cache (400 us, not 497, for GPT-2)."""
    return key == "tensor2" and "addcmul" in call.name and call.arg("tensor1") == call.arg("tensor2")


def _curves(name: str, first: TensorSpec, depth: int) -> tuple[str, ...]:
    size = item_bytes(first.dtype)
    if name in _FUSED:
        return (f"foreach/{name}-{depth}/{size}", f"foreach/_fused_adamw_-4/{size}")
    stem = name.removeprefix("_foreach_").rstrip("_")
    like = _LIKE.get(stem, "_foreach_mul_" if depth == 1 else "_foreach_add_" if depth == 2 else "_foreach_addcmul_")
    scaled = (f"foreach/_foreach_mul_-{depth}/{size}",) if depth == 1 else ()  # a number added costs what scaling does
    return (f"foreach/{name}-{depth}/{size}", f"foreach/{like}-{depth}/{size}", *scaled, f"foreach/{like}-{depth}/4")


def _flops_per_element(name: str) -> int:
    return 16 if name in _FUSED else 2


def num_launches(sizes: list[int], depth: int) -> int:
    """Launches of multi_tensor_apply for tensors of `sizes` elements in `depth` parallel lists."""
    limit = _MAX_TENSORS[min(max(depth, 1), len(_MAX_TENSORS)) - 1]
    launches, blocks, tensors = 0, 0, 0
    for size in sizes:
        if not size:
            continue
        tensors += 1
        blocks += ceil_div(size, _CHUNK)
        if blocks >= _MAX_BLOCKS:
            launches += blocks // _MAX_BLOCKS
            blocks %= _MAX_BLOCKS
            tensors = 1 if blocks else 0
        elif tensors == limit:
            launches, blocks, tensors = launches + 1, 0, 0
    return max(launches + (1 if blocks else 0), 1)


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of `at` = (bytes, launches): fixed for each launch, and the traffic at its share of the streaming rate."""
    num_bytes, launches = at
    return (KERNEL_GAP_NS + 1500.0) * launches + roof.stream_ns(num_bytes) / _rate(curve)


def _rate(curve: str) -> float:
    """The share of the streaming rate that lists of the curve 'foreach/<name>-<lists>/<bytes of an element>' reach."""
    _, kind, size = curve.split("/")
    if size != "2":
        return _RATE
    if "_norm" in kind:
        return _NORM_RATE_2_BYTES
    name, lists = kind.rsplit("-", 1)
    return _RATE_2_BYTES.get(int(lists) + name.endswith("_"), _RATE)
