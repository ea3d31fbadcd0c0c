"""Where Inductor times kernels to decide something, their prices decide.

pad_mm pads a product whose sizes are not multiples of 8 (a vocabulary of 50257) when the padded one, with the copies
that padding takes, is faster by a tenth. Inductor runs both; here both are priced, so that compiling launches and
allocates nothing: a graph from the cache and a freshly compiled one leave the same traces.
Choices among several implementations of one product (mode="max-autotune") are not modelled: they stay cuBLAS's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from phantora.compute.call import OpCall, TensorSpec
from phantora.intercept import session
from phantora.intercept.calls import dtype_name
from phantora.intercept.flags import flags_of

_MULTIPLIER = 1.1  # is_padded_faster in torch/_inductor/fx_passes/pad_mm.py


def install() -> None:
    """Put prices where Inductor benchmarks."""
    from torch._inductor import utils
    from torch._inductor.fx_passes import pad_mm

    def should_pad(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:
        return _is_padding_faster(pad_mm, match, mat1, mat2, op, input)

    pad_mm._should_pad = should_pad
    pad_mm.has_triton = lambda: True
    utils.get_gpu_dram_gbps = _dram_gbps


def _dram_gbps() -> float:
    """As triton.testing.get_dram_gbps computes it."""
    properties: Any = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.memory_clock_rate * 1e3 * 2 * properties.memory_bus_width / 8 / 1e9


def _is_padding_faster(pad_mm: Any, match: Any, mat1: Any, mat2: Any, op: Any, input: Any) -> bool:
    """`_should_pad` of pad_mm.py: the same tests, prices instead of timings."""
    m, k, n = (_hint(size) for size in (mat1.shape[-2], mat1.shape[-1], mat2.shape[-1]))
    if torch._inductor.config.force_shape_pad:
        return True
    if not pad_mm.is_mm_compute_bound(m, k, n, mat1.dtype):
        return False
    alignment = pad_mm.get_alignment_size(mat1)
    more = [pad_mm.get_padded_length(size, alignment) for size in (mat1.shape[-2], mat1.shape[-1], mat2.shape[-1])]
    plain_ns = _product_ns(op, mat1, mat2, input, (0, 0, 0))
    padded_ns = _product_ns(op, mat1, mat2, input, more)
    for name, tensor, paddings in (("mat1", mat1, more[:2]), ("mat2", mat2, more[1:])):
        if any(paddings) and not pad_mm.should_exclude_padding_time(match, name):
            padded_ns += _copy_ns(tensor, paddings)
    return plain_ns > _MULTIPLIER * padded_ns


def _product_ns(op: Any, mat1: Any, mat2: Any, input: Any, more: Sequence[int]) -> int:
    m, k, n = more
    left, right = _spec(mat1, m, k), _spec(mat2, k, n)
    shape = (*left.shape[:-1], right.shape[-1])
    output = TensorSpec(shape, _contiguous(shape), left.dtype)
    name = op._qualified_op_name
    args: list[tuple[str, Any]] = [("self", left), ("mat2", right)]
    if input is not None:
        bias = _spec(input, 0, n if input.shape[-1] != 1 else 0)
        args = [("self", bias), ("mat1", left), ("mat2", right), ("beta", 0.0), ("alpha", 0.0)]
    return session.price_ns(OpCall(name=name, args=tuple(args), outputs=(output,), flags=flags_of(name[6:])))


def _copy_ns(tensor: Any, more: Sequence[int]) -> int:
    """constant_pad_nd: a new tensor is filled, then the old one is copied into it."""
    shape = _spec(tensor, *more).shape
    padded = TensorSpec(shape, _contiguous(shape), dtype_name(tensor.dtype))
    inner = TensorSpec(_spec(tensor, 0, 0).shape, padded.stride, padded.dtype)
    fill = OpCall(name="aten::fill_", overload="Scalar", args=(("self", padded), ("value", 0)), mutated=("self",))
    copy = OpCall(name="aten::copy_", args=(("self", inner), ("src", _spec(tensor, 0, 0))), mutated=("self",))
    return session.price_ns(fill) + session.price_ns(copy)


def _spec(tensor: Any, more_rows: int, more_columns: int) -> TensorSpec:
    """`tensor` (a fake one), its last two dimensions longer; a padded one is a new contiguous one."""
    sizes = [_hint(size) for size in tensor.shape]
    strides = [_hint(stride) for stride in tensor.stride()]
    if more_rows or more_columns:
        sizes[-1] += more_columns
        if len(sizes) > 1:
            sizes[-2] += more_rows
        strides = list(_contiguous(tuple(sizes)))
    return TensorSpec(tuple(sizes), tuple(strides), dtype_name(tensor.dtype))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _hint(size: Any) -> int:
    """A symbolic size as that of the example."""
    if isinstance(size, int):
        return size
    from torch.fx.experimental.symbolic_shapes import optimization_hint

    return int(optimization_hint(size))
