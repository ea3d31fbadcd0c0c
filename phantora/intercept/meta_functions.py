"""Shape functions for CUDA operators that torch gives none, and whose CPU kernels cannot stand in.

The other operators without Meta kernel are tried on the CPU (shape_inference.py). Each function returns what the CUDA
kernel allocates; sources are the CUDA files under aten/src/ATen/native.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _channels(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[1], dtype=_accumulated(x.dtype))


def _batch_norm_stats(input: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _channels(input), _channels(input)


def _batch_norm_elemt(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    return torch.empty_like(input)


def _batch_norm_gather_stats(input: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _channels(input), _channels(input)


def _batch_norm_backward_reduce(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    input_g: bool,
    weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor, ...]:
    sums = [_channels(input) if input_g else torch.empty(0, device="meta") for _ in range(2)]
    grads = [_channels(input) if wanted else torch.empty(0, device="meta") for wanted in (weight_g, bias_g)]
    return (*sums, *grads)


def _batch_norm_backward_elemt(grad_out: Tensor, input: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(input)


def _cudnn_rnn_backward(
    input: Tensor,
    weight: list[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    *rest: Any,
) -> tuple[Any, ...]:
    cell = None if cx is None else torch.empty_like(cx)
    return torch.empty_like(input), torch.empty_like(hx), cell, [torch.empty_like(w) for w in weight]


def _conv_output(
    input: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    return torch.ops.aten.convolution.default(
        input, weight, None, stride, padding, dilation, False, [0] * len(stride), groups
    )


def _cudnn_convolution(
    input: Tensor,
    weight: Tensor,
    padding: list[int],
    stride: list[int],
    dilation: list[int],
    groups: int,
    *switches: bool,
) -> Tensor:
    return _conv_output(input, weight, stride, padding, dilation, groups)


def _cudnn_convolution_transpose(
    input: Tensor, weight: Tensor, padding: list[int], output_padding: list[int], stride: list[int], dilation:
    list[int], groups: int, *switches: bool,
) -> Tensor:  # fmt: skip
    return torch.ops.aten.convolution.default(
        input, weight, None, stride, padding, dilation, True, output_padding, groups
    )


def _cudnn_convolution_relu(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    return _conv_output(input, weight, stride, padding, dilation, groups)


def _cudnn_convolution_add_relu(
    input: Tensor, weight: Tensor, z: Tensor, alpha: Any, bias: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int,
) -> Tensor:  # fmt: skip
    return _conv_output(input, weight, stride, padding, dilation, groups)


def _depthwise(
    input: Tensor, weight: Tensor, kernel_size: list[int], bias: Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int],
) -> Tensor:  # fmt: skip
    return _conv_output(input, weight, stride, padding, dilation, input.shape[1])


def _grid_sampler(input: Tensor, grid: Tensor) -> Tensor:
    return input.new_empty((*input.shape[:2], *grid.shape[1:3]))


def _grid_sampler_backward(input: Tensor, grid: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(input), torch.empty_like(grid)


def _affine_grid(theta: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return theta.new_empty((n, h, w, 2))


def _affine_grid_backward(grad: Tensor, n: int, c: int, h: int, w: int) -> Tensor:
    return grad.new_empty((n, 2, 3))


def _fused_gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(hx), hx.new_empty((hx.shape[0], hx.shape[1] * 5))


def _fused_gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Any, ...]:
    batch, hidden = workspace.shape[0], workspace.shape[1] // 5
    gates = [workspace.new_empty((batch, 3 * hidden)) for _ in range(2)]
    biases = [workspace.new_empty((3 * hidden,)) if has_bias else None for _ in range(2)]
    return (*gates, workspace.new_empty((batch, hidden)), *biases)


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *rest: Any
) -> tuple[Tensor, Tensor]:
    length, batch = log_probs.shape[0], log_probs.shape[1] if log_probs.dim() == 3 else 1
    longest = targets.shape[1] if targets.dim() == 2 else max(_as_list(target_lengths), default=0)
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, length, 2 * longest + 1))


def _as_list(lengths: Any) -> list[int]:
    return [] if isinstance(lengths, Tensor) else list(lengths)


def _ctc_loss_backward(grad: Tensor, log_probs: Tensor, *rest: Any, **more: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _lstsq(
    self: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None, solution: Tensor,
    residuals: Tensor, rank: Tensor, singular_values: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """aten::linalg_lstsq.out with the one driver of CUDA, 'gels', which gives neither rank nor singular values
    (BatchLinearAlgebra.cpp)."""
    if driver not in (None, "gels"):
        raise RuntimeError("torch.linalg.lstsq: `driver` other than `gels` is not supported on CUDA")
    is_vector = b.dim() == 1 or (self.dim() - 1 == b.dim() and b.shape == self.shape[:-1])
    batch, (rows, columns) = self.shape[:-2], self.shape[-2:]
    num_right_sides = 1 if is_vector else b.shape[-1]
    solution.resize_((*batch, columns) if is_vector else (*batch, columns, num_right_sides))
    residuals.resize_((*batch, num_right_sides) if rows > columns else (0,))
    return solution, residuals, rank.resize_(0), singular_values.resize_(0)


def _grouped_mm(
    self: Tensor, mat2: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """torch's own takes bfloat16 only; the CUDA operator also has a loop of matmuls for float16 and float32
    (_grouped_mm_cuda and _grouped_mm_fallback in native/cuda/GroupedBlas.cpp), with the same output."""
    import torch._meta_registrations as registrations

    if self.dtype != mat2.dtype or self.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise RuntimeError(f"Expected mat_a and mat_b of one dtype (bfloat16, float16 or float32), got {self.dtype} and {mat2.dtype}")
    create: Any = registrations._create_grouped_mm_output_tensor
    return create(self, mat2, offs, out_dtype or self.dtype)


# Torch has a Meta kernel, but a narrower one than the CUDA operator.
_OVERRIDDEN: dict[str, Callable[..., Any]] = {"_grouped_mm": _grouped_mm}

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _batch_norm_stats,
    "batch_norm_elemt": _batch_norm_elemt,
    "batch_norm_gather_stats": _batch_norm_gather_stats,
    "batch_norm_gather_stats_with_counts": _batch_norm_gather_stats,
    "batch_norm_backward_reduce": _batch_norm_backward_reduce,
    "batch_norm_backward_elemt": _batch_norm_backward_elemt,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "cudnn_convolution": _cudnn_convolution,
    "cudnn_convolution_transpose": _cudnn_convolution_transpose,
    "cudnn_convolution_relu": _cudnn_convolution_relu,
    "cudnn_convolution_add_relu": _cudnn_convolution_add_relu,
    "_conv_depthwise2d": _depthwise,
    "conv_depthwise3d": _depthwise,
    "linalg_lstsq.out": _lstsq,
    "cudnn_grid_sampler": _grid_sampler,
    "cudnn_grid_sampler_backward": _grid_sampler_backward,
    "cudnn_affine_grid_generator": _affine_grid,
    "cudnn_affine_grid_generator_backward": _affine_grid_backward,
    "_thnn_fused_gru_cell": _fused_gru_cell,
    "_thnn_fused_gru_cell_backward": _fused_gru_cell_backward,
    "_ctc_loss": _ctc_loss,
    "_ctc_loss.Tensor": _ctc_loss,
    "_ctc_loss_backward": _ctc_loss_backward,
    "_ctc_loss_backward.Tensor": _ctc_loss_backward,
}


def install(libraries: list[Any]) -> None:
    """Register the functions at the Meta key."""
    import torch._decomp
    import torch._meta_registrations

    library = torch.library.Library("aten", "IMPL")
    for name, function in _FUNCTIONS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, function, "Meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 'Overriding a previously registered kernel'
        for name, function in _OVERRIDDEN.items():
            library.impl(name, function, "Meta", allow_override=True)
    libraries.append(library)


def names() -> list[str]:
    """The operators that get a shape function here."""
    return list(_FUNCTIONS)
