"""Matrix products: mm, addmm, bmm, linear, scaled (fp8/int8) and grouped products.

Model: the output is cut into tiles, tiles run in waves over the SMs, a short grid is split along k; time is the best
over tile shapes and splits, but never below the traffic or the launch floor. Efficiencies are those that the measured
points (cuBLAS 13 on an H200) reach with large operands. Operands whose rows do not start at multiples of 16 bytes
cannot be loaded by TMA: cuBLAS then falls back to kernels of older generations, five to seven times slower.
"""

from __future__ import annotations

import math
from functools import lru_cache

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.roof import Roof
from phantora.compute.work import (
    Work,
    base_name,
    ceil_div,
    first_tensor,
    flag,
    item_bytes,
    nbytes,
    numel,
    read,
    traffic,
)

FAMILY = "gemm"

# (tile rows, tile columns, share of the peak that a full wave of such tiles reaches)
_TILES = ((128, 256, 0.86), (128, 128, 0.76), (64, 128, 0.58), (64, 64, 0.42), (32, 32, 0.32))
_SPLITS = (1, 2, 4, 8, 16, 32, 64, 128)

# Share of the peak relative to bfloat16's: SIMT float32 reaches 52 of 67 TF, TF32 426 of 494 at best and
# 330 in the middle, float16 0.97 of bfloat16.
_DTYPE_SHARE = {"float32": 0.92, "tf32": 0.8, "float16": 0.97, "float64": 1.0}

# Share of an H200's peak when rows start at odd addresses (2, 4, 8 bytes): 95 to 150, 200 to 290, 200 to 270 of 989 TF in
# bfloat16. Narrow loads bound such kernels, not the tensor cores, so it goes with the SMs from one GPU to another. (nanoGPT
# became 25 % faster on an A100 with a vocabulary of 50,304 instead of 50,257: a head at some 90 TF, which is 0.12 here.)
_ODD_SHARE = {2: 0.12, 4: 0.25, 8: 0.25}
_RATED_FLOPS_PER_NS_AND_SM = {"half": 989e3 / 132, "tf32": 494e3 / 132}
_FIXED_NS = 2600.0  # launch, prologue and epilogue of the shortest products: 2.8 us at 16x72x48
_K_STEP_NS = 0.45  # latency of one step along k when too few tiles hide it: [1,768]x[768,768] 4.6 us, k=3072 6.8 us

# An epilogue stores at 1.75 of 4.39 TB/s: 15552x6200x32 writes 193 MB in 111 us; longer k hides it.
_STORE_COST = 2.4

# How far apart points are per doubling of (batch, m, n, k, alignment).
WEIGHTS = (0.6, 0.6, 0.6, 0.6, 1.2)

# fmt: off
NAMES = (
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "addmv_", "dot", "vdot", "ger", "addr", "linear",
    "matmul",
    "_addmm_activation", "_scaled_mm", "_scaled_mm_v2", "_int_mm", "_grouped_mm", "_scaled_grouped_mm",
    "_scaled_grouped_mm_v2", "mkldnn_linear", "_weight_int8pack_mm", "_weight_int4pack_mm", "_mixed_dtypes_linear",
    "addmm_", "baddbmm_", "addbmm_", "linear_backward",
)
# fmt: on

# Names of the operands in the schemas, in the order in which they are looked for.
_LEFT = ("self", "mat1", "batch1", "input", "mat_a", "mat1_", "vec1")
# fmt: off
_PAIRS = (
    ("mat1", "mat2"), ("batch1", "batch2"), ("mat_a", "mat_b"), ("self", "mat2"), ("mat", "vec"), ("vec1", "vec2"),
    ("self", "vec2"), ("self", "vec"), ("self", "tensor"), ("self", "other"), ("input", "weight"),
)
# fmt: on


def describe(call: OpCall) -> tuple[Work, ...]:
    left, right = _operands(call)
    if left is None or right is None or not left.shape:
        return ()
    name = base_name(call.name)
    if "grouped" in name and min(len(left.shape), len(right.shape)) < 2:
        return ()
    if name == "linear_backward":
        return _linear_backward(call, left, right)
    batch, m, n, k = _sizes(name, left, right, call)
    dtype = _compute_dtype(call, left)
    layout = _order(left, transposed=False) + _order(right, transposed=name == "linear")
    align = _alignment(left, right, n)
    if left.dtype.startswith("complex"):
        k *= 4  # a complex product is four real ones
    return (
        Work(
            family=FAMILY,
            curves=curves(_kind(name, batch, call), layout, dtype, align),
            at=(batch, m, n, k, align),
            flops=2 * batch * m * n * k,
            bytes=traffic(call),
            num_kernels=_num_kernels(batch, m, n, k),
        ),
    )


def _kind(name: str, batch: int, call: OpCall) -> str:
    """What else than the sizes chooses a kernel: batches, groups, an epilogue, scales per row."""
    if "grouped" in name:
        return "grouped"
    if name == "_scaled_mm":
        scale = call.arg("scale_a")
        return "rowwise" if isinstance(scale, TensorSpec) and numel(scale) > 1 else "mm"
    if batch > 1:
        return "bmm"
    return "addmm" if name in ("addmm", "addmm_", "_addmm_activation") else "mm"


@lru_cache(maxsize=256)
def curves(kind: str, layout: str, dtype: str, align: int) -> tuple[str, ...]:
    """gemm/width class/alignment/kind and layout/dtype; without points for the dtype, those of its class."""
    group = "half" if dtype in ("bfloat16", "float16") else dtype
    stem = f"gemm/{group}/{'aligned' if align == 16 else 'odd'}"
    kinds = (kind,) if kind in ("mm", "grouped") else (kind, "mm")
    dtypes = (dtype, "bfloat16") if dtype == "float16" else (dtype,)
    return tuple(f"{stem}/{k}-{layout}/{d}" for k in kinds for d in dtypes)


def _operands(call: OpCall) -> tuple[TensorSpec | None, TensorSpec | None]:
    for left, right in _PAIRS:
        a, b = call.arg(left), call.arg(right)
        if isinstance(a, TensorSpec) and isinstance(b, TensorSpec):
            return a, b
    tensors = [t for t in read(call) if len(t.shape) >= 2]
    return (tensors[-2], tensors[-1]) if len(tensors) >= 2 else (first_tensor(call, *_LEFT), None)


def _sizes(name: str, left: TensorSpec, right: TensorSpec, call: OpCall) -> tuple[int, int, int, int]:
    """(batch, m, n, k)."""
    a, b = left.shape, right.shape
    if name == "linear":
        return 1, max(numel(left) // max(a[-1], 1), 1), b[0], a[-1]
    if "grouped" in name:
        offsets = call.arg("offs")
        return _grouped_sizes(a, b, numel(offsets) if isinstance(offsets, TensorSpec) else 1)
    if len(b) == 1:
        return 1, (a[0] if len(a) > 1 else 1), 1, a[-1]
    if len(a) == 1:
        return 1, a[0], b[-1], 1
    if len(a) >= 3:
        batch = 1
        for size in a[:-2]:
            batch *= size
        return batch, a[-2], b[-1], a[-1]
    return 1, a[0], b[-1], a[1]


def _grouped_sizes(a: tuple[int, ...], b: tuple[int, ...], groups: int) -> tuple[int, int, int, int]:
    """Groups are taken as equally large: 2d x 3d shares the rows, 2d x 2d the inner dimension."""
    if len(a) == 2 and len(b) == 3:
        return b[0], max(a[0] // max(b[0], 1), 1), b[2], a[1]
    if len(a) == 3 and len(b) == 2:
        return a[0], a[1], max(b[1] // max(a[0], 1), 1), a[2]
    if len(a) == 3:
        return a[0], a[1], b[2], a[2]
    return groups, a[0], b[1], max(a[1] // max(groups, 1), 1)


def _linear_backward(call: OpCall, left: TensorSpec, right: TensorSpec) -> tuple[Work, ...]:
    """Two products: the gradient of the input and that of the weight."""
    rows, k, n = numel(left) // max(left.shape[-1], 1), left.shape[-1], right.shape[0]
    dtype, align = _compute_dtype(call, left), _row_alignment((k, n), left.dtype)
    flops = 2 * rows * k * n
    return tuple(
        Work(
            family=FAMILY,
            curves=curves("mm", layout, dtype, align),
            at=(*at, align),
            flops=flops,
            bytes=nbytes(left) + nbytes(right) + rows * n * item_bytes(left.dtype),
        )
        for at, layout in (((1, rows, k, n), "nn"), ((1, n, k, rows), "tn"))
    )


def _compute_dtype(call: OpCall, left: TensorSpec) -> str:
    if left.dtype == "float32":
        return "tf32" if flag(call, "allow_tf32", False) else "float32"
    if left.dtype.startswith("float8") or left.dtype.startswith("float4"):
        return "float8"
    if left.dtype in ("complex64", "complex128"):
        return "float32" if left.dtype == "complex64" else "float64"
    return left.dtype if left.dtype in ("float16", "bfloat16", "float64", "int8") else "float32"


def _order(tensor: TensorSpec, transposed: bool) -> str:
    """'n' when rows are contiguous, 't' when columns are; `transposed` for weights that are used as weight.T."""
    if len(tensor.stride) < 2:
        return "n"
    columns = tensor.stride[-1] != 1 and tensor.stride[-2] == 1 and tensor.shape[-1] != 1
    return "t" if columns != transposed else "n"


def _alignment(left: TensorSpec, right: TensorSpec, n: int) -> int:
    leads = [_leading(left), _leading(right)]
    return _row_alignment((*leads, n) if n > 1 else (max(leads),), left.dtype)


def _leading(tensor: TensorSpec) -> int:
    """Elements from the start of one row (or column) to that of the next."""
    if len(tensor.stride) < 2:
        return 16
    wide = [st for st, sz in zip(tensor.stride[-2:], tensor.shape[-2:]) if sz > 1 and st != 1]
    return max(wide) if wide else tensor.shape[-1]


def _row_alignment(leads: tuple[int, ...], dtype: str) -> int:
    """Bytes (at most 16) at multiples of which all rows start."""
    align = 16
    for lead in leads:
        size = lead * item_bytes(dtype)
        while size % align:
            align //= 2
    return max(align, 1)


@lru_cache(maxsize=4096)
def _num_kernels(batch: int, m: int, n: int, k: int) -> int:
    """Two when k is split and the parts are reduced by a second kernel (few tiles, long k)."""
    tiles = batch * ceil_div(m, 128) * ceil_div(n, 128)
    return 2 if tiles < 33 and k >= 2048 else 1


def burst_factor(curve: str, device_ns: float) -> float:
    """Time in a burst over time in a benchmark of 30 ms: 4 % less per doubling beyond 0.5 ms, at most 11 % less.

    A benchmark that repeats one product for 30 ms meets the power limit, which lowers the clock; the longer the
    product, the fewer rests between launches. Single products in profiled Llama steps (16-bit, H200) are faster than
    it by 4 % at 1 ms, 10 % at 2.8 ms and 11 % at 5.5 ms per call and equally fast below 0.4 ms; bursts are 10 to 11 %
    faster than sustained load (validation/data/h200/power.json).
    """
    if not curve.startswith("gemm/half/aligned"):
        return 1.0
    return min(1.0, max(0.89, 1.0 - 0.04 * math.log2(device_ns / 500e3)))


def model_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of a product `at` = (batch, m, n, k, alignment in bytes) of the dtype that ends `curve`."""
    batch, m, n, k, align = at
    dtype = curve.rsplit("/", 1)[1]
    size = 4 if dtype in ("tf32", "float32") else 8 if dtype == "float64" else 1 if dtype in ("float8", "int8") else 2
    peak = roof.flops_per_ns(dtype) * _DTYPE_SHARE.get(dtype, 1.0)
    if dtype not in ("float32", "float64") and align < 16:
        rated = _RATED_FLOPS_PER_NS_AND_SM["tf32" if dtype == "tf32" else "half"] * _DTYPE_SHARE.get(dtype, 1.0)
        peak = min(peak, rated * roof.num_sms * _ODD_SHARE.get(align, 0.12) / 0.86)
    moved = roof.stream_ns(batch * (m * k + k * n + _STORE_COST * m * n) * size)
    compute = compute_ns((batch, m, n, k), peak, roof)
    return _FIXED_NS + (compute**3 + moved**3) ** (1 / 3)


def compute_ns(sizes: tuple[int, int, int, int], peak: float, roof: Roof) -> float:
    """Time of the tensor cores for (batch, m, n, k) at `peak` FLOP/ns, with the best tile and split."""
    return min(_tiled_ns(*sizes, tile, peak, roof) for tile in _TILES)


def _tiled_ns(batch: int, m: int, n: int, k: int, tile: tuple[int, int, float], peak: float, roof: Roof) -> float:
    rows, columns, share = tile
    tiles = batch * min(ceil_div(m, rows) * ceil_div(n, columns), ceil_div(m, columns) * ceil_div(n, rows))
    tile_ns_per_k = 2.0 * rows * columns * roof.num_sms / (peak * share)
    best = float("inf")
    for split in _SPLITS if tiles < roof.num_sms else (1,):
        if split > 1 and k < 512 * split:
            break
        waves = _waves(tiles * split, roof.num_sms)
        depth = k / split
        reduce_ns = 1200.0 + roof.stream_ns(batch * m * n * 4.0 * split) if split > 1 else 0.0
        best = min(best, waves * depth * tile_ns_per_k + depth * _K_STEP_NS + reduce_ns)
    return best


def _waves(tiles: int, num_sms: int) -> float:
    """Waves of tiles; a persistent (stream-k) scheduler evens out a part of the last one."""
    whole = ceil_div(tiles, num_sms)
    return 0.5 * whole + 0.5 * max(tiles / num_sms, 1.0)
