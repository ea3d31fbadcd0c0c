"""Strides of results where torch's meta kernels follow the CPU and CUDA differs.

cuDNN's convolutions work in channels-last when the input or the weight is so (cudnn_conv_suggest_memory_format and
determine_backend_memory_format in aten/src/ATen/native/{ConvUtils.h, Convolution.cpp}).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def corrected(operator: str, result: Any, args: tuple[Any, ...]) -> Any:
    """`result` (meta tensors) of `operator` with CUDA's strides."""
    if operator == "aten::convolution":
        return _in_format(result, _convolution_format(args[0], args[1]))
    if operator == "aten::convolution_backward":
        layout = _convolution_format(args[1], args[2])
        return tuple(r if r is None or r.dim() < 4 else _in_format(r, layout) for r in result)
    return result


def _convolution_format(input: Tensor, weight: Tensor) -> torch.memory_format:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = layouts.get(input.dim())
    if wanted is not None and (_is_only(input, wanted) or _is_only(weight, wanted)):
        return wanted
    return torch.contiguous_format


def _is_only(tensor: Tensor, layout: torch.memory_format) -> bool:
    """Laid out as `layout` and not as an ordinary tensor as well (1x1 kernels are both)."""
    return tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def _in_format(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    if tensor.is_contiguous(memory_format=layout):
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=layout)
