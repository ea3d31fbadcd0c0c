"""LSTM, GRU and RNN: torch reaches cuDNN through a table that a CPU build leaves empty; the same calls are made here.

Mirrors aten/src/ATen/native/{RNN.cpp, cudnn/RNN.cpp}.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.launching import launch, native

_aten = torch.ops.aten

# cudnnDropoutGetStatesSize on an H200 (132 multiprocessors), read from the tensor that torch 2.11 allocated.
_DROPOUT_STATE_BYTES = 6_488_064
_DROPOUT_STATE_OFFSETS = 4
_dropout_states: dict[int, Tensor] = {}


class Mode(enum.IntEnum):
    """cudnnRNNMode_t"""

    RELU = 0
    TANH = 1
    LSTM = 2
    GRU = 3


MODES = {"rnn_relu": Mode.RELU, "rnn_tanh": Mode.TANH, "lstm": Mode.LSTM, "gru": Mode.GRU}


def input_kernel(mode: Mode) -> Callable[..., Any]:
    """The kernel of aten::<mode>.input (padded sequences)."""

    def run(
        input: Tensor, hx: Any, params: list[Tensor], has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        return _run(mode, input, hx, params, num_layers, dropout, train, bidirectional, batch_first, [])

    return run


def data_kernel(mode: Mode) -> Callable[..., Any]:
    """The kernel of aten::<mode>.data (packed sequences)."""

    def run(
        data: Tensor, batch_sizes: Tensor, hx: Any, params: list[Tensor], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        sizes = batch_sizes.tolist()
        return _run(mode, data, hx, params, num_layers, dropout, train, bidirectional, False, sizes)

    return run


def _run(
    mode: Mode, input: Tensor, hx: Any, params: list[Tensor], num_layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, batch_sizes: list[int],
) -> Any:  # fmt: skip
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    buffer: Tensor | None = None
    if torch.is_autocast_enabled("cuda"):
        buffer, params = _cast_weights(params)
        input, states = _cast(input), [_cast(state) for state in states]
    hidden = states[0]
    cell = states[1] if mode is Mode.LSTM else None
    hidden_size = (cell if cell is not None else hidden).shape[-1]
    proj_size = hidden.shape[-1] if hidden.shape[-1] != hidden_size else 0
    num_directions = 2 if bidirectional else 1
    result = _aten._cudnn_rnn.default(
        input, params, len(params) // (num_layers * num_directions), flat_weights(params) if buffer is None else buffer, hidden, cell, int(mode),
        hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes,
        _dropout_state(input.get_device(), dropout, train),
    )  # fmt: skip
    return result[:3] if mode is Mode.LSTM else result[:2]


def _cast(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float16) if tensor.is_floating_point() else tensor


def _cast_weights(params: list[Tensor]) -> tuple[Tensor | None, list[Tensor]]:
    """_cudnn_rnn_cast_reflatten (aten/src/ATen/cudnn/AutocastRNN.cpp, which a CPU build lacks): under autocast cuDNN gets
    float16, whatever autocast's dtype, in one new buffer that every weight is copied into at every call."""
    first = params[0]
    if first.dtype is torch.float16:
        return None, params
    buffer = torch.zeros(sum(p.numel() for p in params), dtype=torch.float16, device=first.device)
    views, offset = [], 0
    for param in params:
        # No view of the buffer for autograd: each weight's gradient is cast back by itself.
        view = torch.empty(0, dtype=torch.float16, device=first.device)
        view.set_(buffer.untyped_storage(), offset, param.shape, param.stride())  # type: ignore[call-overload]
        view.copy_(param)
        views.append(view)
        offset += param.numel()
    return buffer, views


def flat_weights(params: list[Tensor]) -> Tensor:
    """try_get_weight_buf: the one buffer that flatten_parameters() made, else a new one (which a GPU fills each
    time)."""
    first = params[0]
    total = sum(p.numel() for p in params)
    storage = first.untyped_storage()
    is_flat = all(p.untyped_storage()._cdata == storage._cdata for p in params)
    buffer = torch.empty(0 if is_flat else total, dtype=first.dtype, device=first.device)
    if is_flat:
        with torch.no_grad():
            buffer.set_(storage)
    return buffer


def flatten_weight(
    weight_arr: list[Tensor], weight_stride0: int, input_size: int, mode: int, hidden_size: int, proj_size: int,
    num_layers: int, batch_first: bool, bidirectional: bool,
) -> Tensor:  # fmt: skip
    """aten::_cudnn_rnn_flatten_weight: one buffer; every weight becomes a view of it."""
    first = weight_arr[0]
    buffer = torch.zeros(sum(w.numel() for w in weight_arr), dtype=first.dtype, device=first.device)
    offset = 0
    for weight in weight_arr:
        part = buffer.narrow(0, offset, weight.numel()).view(weight.shape)
        part.copy_(weight)
        weight.set_(part)
        offset += weight.numel()
    return buffer


def _dropout_state(device: int, dropout: float, train: bool) -> Tensor | None:
    """DropoutState: made at the first use of dropout on a device, then passed to every call."""
    if dropout > 0 and train and device not in _dropout_states:
        state = torch.empty(_DROPOUT_STATE_BYTES, dtype=torch.uint8, device=torch.device("cuda", device))
        launch(device, "aten::_cudnn_init_dropout_state", ("dropout", dropout), outputs=(state,))
        native.philox(device, _DROPOUT_STATE_OFFSETS)
        _dropout_states[device] = state
    return _dropout_states.get(device)
