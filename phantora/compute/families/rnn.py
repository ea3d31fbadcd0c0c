"""Recurrent layers through cuDNN: one product for all inputs of a layer, then a chain of small ones over time.

A step of the chain is a product of few rows and the pointwise gates, each waiting for the one before. Few points were
measured (cuDNN 9.19 hung in most layers that the sweep tried): LSTMs of 128 to 512 units and one GRU, one layer.
Up to 128 units one kernel keeps the weights on chip and walks through time (RNN_blockPersist_fp_LSTM).
"""

from __future__ import annotations

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families import gemm
from phantora.compute.families.streaming import stream
from phantora.compute.roof import Roof
from phantora.compute.work import Work, base_name, first_tensor, nbytes, read, written

FAMILY = "rnn"
_CELLS = (
    "_thnn_fused_lstm_cell",
    "_thnn_fused_lstm_cell_backward_impl",
    "_thnn_fused_gru_cell",
    "_thnn_fused_gru_cell_backward",
)
# fmt: off
NAMES = ("_cudnn_rnn", "_cudnn_rnn_backward", "lstm", "gru", "rnn_tanh", "rnn_relu", "miopen_rnn",
         "miopen_rnn_backward",
         "_cudnn_rnn_flatten_weight", "_cudnn_init_dropout_state", *_CELLS)
# fmt: on
WEIGHTS = (1.0, 1.0, 1.0, 1.0)

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # cuDNN modes: RNN_RELU, RNN_TANH, LSTM, GRU
# A step: the gates, gaps between dependent kernels, and a product that walks its depth in one piece (hidden units
# forward, gates backward). LSTM 64 x 512 backward takes 25 us a step, 64 x 200 forward 10.7 us, backward 16 us; a
# GRU 64 x 512 backward in float16 12.6 us; 5.8 us inside the persistent kernel.
_STEP_NS, _DEPTH_NS, _PERSISTENT_STEP_NS = 9600.0, {4: 6.0, 2: 2.5}, 5800.0
_PERSISTENT_UNITS = 128
_SHARE = 0.3  # of the peak, by the products of a step when the batch is large


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    if name in _CELLS or name in ("_cudnn_rnn_flatten_weight", "_cudnn_init_dropout_state"):
        moved = sum(map(nbytes, read(call))) + sum(map(nbytes, written(call)))
        return (stream(FAMILY, ("silu_backward",), "float32", moved),)
    source = first_tensor(call, "input")
    if source is None or len(source.shape) < 2:
        return ()
    return _layers(call, source, backward=name.endswith("_backward"))


def _layers(call: OpCall, source: TensorSpec, backward: bool) -> tuple[Work, ...]:
    hidden = int(call.arg("hidden_size", 0) or source.shape[-1])  # type: ignore[arg-type]
    layers = int(call.arg("num_layers", 1) or 1)  # type: ignore[arg-type]
    directions = 2 if call.arg("bidirectional", False) else 1
    gates = _GATES.get(int(call.arg("mode", 2) or 0), 4)  # type: ignore[arg-type]
    steps, batch = _steps(call, source)
    works = []
    for layer in range(layers):
        width = source.shape[-1] if layer == 0 else hidden * directions
        works.append(_product(steps * batch, gates * hidden * directions, width, source.dtype, backward))
    chain = Work(
        family=FAMILY,
        curves=(f"rnn_chain/{'backward' if backward else 'forward'}/{source.dtype}",),
        at=(steps, batch * directions, gates * hidden, hidden),
        flops=2 * steps * batch * directions * gates * hidden * hidden * layers * (2 if backward else 1),
        num_kernels=layers * (1 if hidden <= _PERSISTENT_UNITS and not backward else 2 * steps),
        scale=float(layers),
    )
    return (*works, chain)


def _steps(call: OpCall, source: TensorSpec) -> tuple[int, int]:
    """(time steps, batch), also for a packed sequence (tokens, width) with its batch sizes."""
    sizes = call.arg("batch_sizes")
    if len(source.shape) == 2:
        steps = len(sizes) if isinstance(sizes, tuple) and sizes else source.shape[0]
        return steps, max(source.shape[0] // max(steps, 1), 1)
    return (source.shape[1], source.shape[0]) if call.arg("batch_first", False) else (source.shape[0], source.shape[1])


def _product(m: int, n: int, k: int, dtype: str, backward: bool) -> Work:
    kind = dtype if dtype in ("bfloat16", "float16") else "tf32"
    return Work(
        family=FAMILY,
        curves=gemm.curves("mm", "nt", kind, 16),
        at=(1, max(m, 1), n, k, 16),
        flops=2 * m * n * k * (2 if backward else 1),
        bytes=2 * (m * k + n * k + m * n),
        scale=2.0 if backward else 1.0,
    )


def chain_ns(curve: str, at: tuple[int, ...], roof: Roof) -> float:
    """Time of the chain `at` = (steps, batch, gates x hidden, hidden) of one layer."""
    steps, batch, wide, hidden = at
    _, direction, dtype = curve.split("/")
    kind, size = ("bfloat16", 2) if dtype.endswith("16") else ("tf32", 4)
    backward = direction == "backward"
    if hidden <= _PERSISTENT_UNITS and not backward:
        return steps * _PERSISTENT_STEP_NS
    work = 2.0 * batch * wide * hidden / (roof.flops_per_ns(kind) * _SHARE)
    return steps * (_STEP_NS + _DEPTH_NS[size] * (wide if backward else hidden) + work)
