"""Recurrent layers through cuDNN: one product for all inputs of a layer, then a chain of small ones over time.

Nothing here was measured: the products take the efficiency of measured ones, each step of the chain at least the time
of a launch inside cuDNN's persistent or streamed kernels.
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
_STEP_NS = 6000.0  # a step of the chain: a product with few rows and the pointwise gates


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
        num_kernels=2 * steps * layers,
        scale=layers * (2.0 if backward else 1.0),
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
    kind = "bfloat16" if curve.endswith("16") else "tf32"
    return steps * max(_STEP_NS, gemm.model_ns(f"gemm/{kind}", (1, max(batch, 1), wide, hidden, 16), roof))
