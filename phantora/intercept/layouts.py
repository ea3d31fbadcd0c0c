"""Results where torch's meta kernels follow the CPU, or know less than CUDA.

Convolutions: cuDNN works in channels-last when the input or the weight is so (cudnn_conv_suggest_memory_format and
determine_backend_memory_format in aten/src/ATen/native/{ConvUtils.h, Convolution.cpp}). Recurrent networks: time-major
storage, and a reserve space whose size was read on an H200. Memory-efficient attention: its Philox state is on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Numbers kept per hidden element and step for the backward pass, by cudnnRNNMode_t (RELU, TANH, LSTM, GRU). Read for
# 216 layers (validation/data/h200/recurrent_memory.jsonl); what is beside them is padding, 256 bytes and more.
_RESERVED_PER_STEP = (1, 1, 5, 6)
_RESERVED_BYTES = 256


def corrected(operator: str, result: Any, args: tuple[Any, ...]) -> Any:
    """`result` (meta tensors) of `operator` as CUDA makes it."""
    correction = _CORRECTIONS.get(operator)
    return result if correction is None else correction(result, args)


def _convolution(result: Tensor, args: tuple[Any, ...]) -> Tensor:
    return _in_format(result, _convolution_format(args[0], args[1]))


def _convolution_backward(result: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    layout = _convolution_format(args[1], args[2])
    return tuple(r if r is None or r.dim() < 4 else _in_format(r, layout) for r in result)


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


def _rnn(result: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    output, hidden, cell, reserve, weights = result
    mode, hidden_size, num_layers, batch_first, train, bidirectional = (args[i] for i in (6, 7, 9, 10, 12, 13))
    if train:
        steps = output.numel() // output.shape[-1]
        width = hidden_size * (2 if bidirectional else 1)
        kept = steps * width * (_RESERVED_PER_STEP[mode] * num_layers + num_layers - 1)
        reserve = output.new_empty(kept * output.itemsize + _RESERVED_BYTES, dtype=torch.uint8)
    return (_time_major(output) if batch_first else output), hidden, cell, reserve, weights


def _rnn_backward(result: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    batch_first = args[14]
    return (_time_major(result[0]) if batch_first else result[0], *result[1:])


def _time_major(tensor: Tensor) -> Tensor:
    batch, steps, width = tensor.shape
    return tensor.new_empty((steps, batch, width)).transpose(0, 1)


def _efficient_attention(result: tuple[Any, ...], args: tuple[Any, ...]) -> tuple[Any, ...]:
    output, logsumexp, seed, offset = result
    return output, logsumexp, _on_cpu(seed), _on_cpu(offset)


def _on_cpu(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")


_CORRECTIONS: dict[str, Callable[[Any, tuple[Any, ...]], Any]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_cudnn_rnn": _rnn,
    "aten::_cudnn_rnn_backward": _rnn_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient_attention,
}
