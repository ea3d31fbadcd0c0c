"""The three models that most kernels share: streams, rows, and kernels bound by their instructions.

stream  at = (bytes,): memory traffic at the streaming rate above a launch floor.
rows    at = (rows, columns) of a tensor of which each row is reduced or normalised: `passes` times its bytes.
items   at = (items, bytes): the greater of instructions per element and traffic.

Rates of `items` are elements per second on the 132 SMs of an H200, from kernels of profiled training steps (the
kernel's name in brackets); they scale with the number of SMs.
"""

from __future__ import annotations

from collections.abc import Iterable

from phantora.compute.roof import KERNEL_GAP_NS, LAUNCH_FLOOR_NS, Roof
from phantora.compute.work import Work, item_bytes

# fmt: off
ITEMS_PER_S: dict[str, float] = {
    # [elementwise_kernel] operands addressed through an offset calculator: broadcast, permuted or sliced views.
    "offsets": 315e9,
    # The same when neighbouring threads touch distant rows (x.t().contiguous(): 144e9 in bfloat16, 138e9 in float32).
    "transposed": 142e9,
    # [unrolled_elementwise_kernel with LoadWithCast] dtypes converted on the fly: one operand, several operands.
    "cast": 353e9,
    "cast_many": 257e9,
    # [CatArrayBatchedCopy] joining views that are not contiguous.
    "cat": 232e9,
    # [distribution_elementwise_grid_stride_kernel] Philox numbers, a few per thread.
    "random": 400e9,
    # [vectorized_gather_kernel] one block per gathered row, however short: items are rows.
    "row_gather": 1.66e9,
    # [index_elementwise_kernel, _scatter_gather_elementwise_kernel] one element each.
    "gather": 345e9,
    "scatter": 380e9,
    # The same with an atomic add; [indexFuncLargeIndex] index_add finds its row per element.
    "scatter_atomic": 290e9,
    "index_add": 138e9,
    # [indexing_backward_kernel] index_put with accumulate walks sorted duplicates one after the other.
    "index_put_accumulate": 4.2e9,
    # [reduce_kernel<512,1>] inner reductions of short rows: items are rows, one part of a warp each.
    "short_rows": 4.5e9,
    # [nll_loss_*_reduce_cuda_kernel_2d] a single block walks the rows.
    "single_block": 1.3e9,
    # Depthwise convolution, per output and filter tap (an estimate: nothing was measured).
    "depthwise": 1500e9,
    # Pooling windows and interpolation, per element of the larger side (max_pool2d forward 243e9 to 251e9, backward
    # 89e9 in NCHW and 113e9 in NHWC).
    "pool": 250e9,
    "pool_backward": 100e9,
    "upsample": 250e9,
}
# fmt: on

# Passes of `rows` kernels over their tensor, reads and writes together.
# fmt: off
PASSES: dict[str, float] = {
    "softmax": 2.0, "softmax_backward": 3.0, "log_softmax": 2.0, "log_softmax_backward": 3.0, "layer_norm": 2.0,
    "layer_norm_backward": 5.0, "rms_norm": 2.0, "rms_norm_backward": 5.0, "group_norm": 3.0,
    "group_norm_backward": 5.0,
    "sum_dim": 1.0, "mean_dim": 1.0, "argmax": 1.0, "cumsum": 2.0, "topk2": 4.0, "nll_loss": 0.0,
}
# fmt: on

# Rows kernels give a row to a block or a warp: fewer rows than this leave SMs idle.
_ROWS_IN_FLIGHT_PER_SM = 4

WEIGHTS = {"stream": (1.0,), "rows": (1.0, 1.0), "items": (1.0, 1.0)}


def stream(family: str, like: Iterable[str], dtype: str, num_bytes: int, num_kernels: int = 1, flops: int = 0) -> Work:
    """Streaming work whose efficiency is that of the first measured operator in `like`."""
    curves = tuple(f"stream/{op}/{_curve_dtype(dtype)}" for op in like)
    return Work(
        family=family, curves=curves, at=(max(num_bytes, 1),), flops=flops, bytes=num_bytes, num_kernels=num_kernels
    )


def rows(
    family: str,
    like: Iterable[str],
    dtype: str,
    num_rows: int,
    num_columns: int,
    num_kernels: int = 1,
    scale: float = 1.0,
) -> Work:
    """Work on `num_rows` rows of `num_columns` elements each."""
    names = tuple(like)
    size = num_rows * num_columns
    return Work(
        family=family,
        curves=tuple(f"rows/{op}/{_curve_dtype(dtype)}" for op in names),
        at=(max(num_rows, 1), max(num_columns, 1)),
        flops=5 * size,
        bytes=int(PASSES[names[0]] * size * item_bytes(dtype)),
        num_kernels=num_kernels,
        scale=scale,
    )


def items(family: str, kind: str, num_items: int, num_bytes: int, num_kernels: int = 1, flops: int = 0) -> Work:
    """Work of `num_items` at the rate of `kind` (a key of ITEMS_PER_S), or of its traffic if that takes longer."""
    return Work(
        family=family,
        curves=(f"items/{kind}",),
        at=(max(num_items, 1), max(num_bytes, 1)),
        flops=flops,
        bytes=num_bytes,
        num_kernels=num_kernels,
    )


def _curve_dtype(dtype: str) -> str:
    """Curves were measured in bfloat16 and float32; kernels of other types behave as those of the same width."""
    return "bfloat16" if item_bytes(dtype) <= 2 else "float32"


def stream_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    return LAUNCH_FLOOR_NS + roof.stream_ns(at[0])


def rows_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    _, op, dtype = curve.split("/")
    num_rows, num_columns = at
    moved = PASSES[op] * num_rows * num_columns * item_bytes(dtype)
    if op == "nll_loss":
        return 4000 + roof.items_ns(num_rows, ITEMS_PER_S["single_block"])
    if op == "sum_dim":  # columns are reduced: threads lie along them, so few columns leave bandwidth unused
        return LAUNCH_FLOOR_NS + 4000 + roof.stream_ns(moved) / min(1.0, num_columns / 2048) ** 0.7
    occupancy = min(1.0, num_rows / (_ROWS_IN_FLIGHT_PER_SM * roof.num_sms))
    return LAUNCH_FLOOR_NS + 1000 + roof.stream_ns(moved) / occupancy


def items_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    kind = curve.split("/")[1]
    return KERNEL_GAP_NS + 1000 + max(roof.items_ns(at[0], ITEMS_PER_S[kind]), roof.stream_ns(at[1]))
