"""Recurrent layers through cuDNN: one product for all inputs of a layer, then a chain of small ones over time.

A step of the chain waits for the one before: a fixed latency (launches of a product and of the gates, the product's
depth) and the GPU's own work (weights from the L2 cache, the product, the gates). Layers of one direction run side by
side, a step apart, so two layers take the latency once and the work twice: 1.2 times one layer of 256 units, 1.8 to 1.9
times one of 2,048. Two directions overlap the same way, but the next layer waits for both.

Where torch asks for it (get_algo of aten/native/cudnn/RNN.cpp), or cuDNN decides, one kernel walks through time.

Constants: 280 layers on an H200 (validation/data/h200/recurrent.jsonl), those of 64 and 128 steps; longer ones were bound
by the host.
"""

from __future__ import annotations

from dataclasses import dataclass

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
WEIGHTS = (1.0,) * 6

_GATES = {0: 1, 1: 1, 2: 4, 3: 3}  # cuDNN modes: RNN_RELU, RNN_TANH, LSTM, GRU
_LSTM = 2


@dataclass(frozen=True, slots=True)
class _Chain:
    """A step of a chain of kernels."""

    latency_ns: float
    latency_ns_per_unit: float
    plain_share: float
    """Of the latency, where there is one gate."""
    work_ns: float
    peak_share: float
    """What the products of a step reach of the tensor cores' peak."""


_CHAINS = {
    ("forward", 2): _Chain(7200.0, 0.0, 1.0, 2700.0, 0.70),
    ("backward", 2): _Chain(8400.0, 0.3, 1.0, 5350.0, 0.57),
    ("forward", 4): _Chain(6900.0, 3.6, 1.0, 3800.0, 0.70),
    ("backward", 4): _Chain(16_600.0, 6.3, 0.56, 3800.0, 0.37),
}
_WEIGHTS_OVER_MEMORY = 6000.0 / 4392.0  # bandwidth of the L2 cache, from which weights come, over that of memory
_SMALL_UNITS = {"forward": 384, "backward": 256}  # torch asks for cuDNN's PERSIST_STATIC_SMALL_H


@dataclass(frozen=True, slots=True)
class _Persistent:
    """A step of one kernel that keeps the weights on chip and walks through time."""

    step_ns: float
    row_ns: float
    row_ns_per_unit: float


_PERSISTENT = {
    # LSTM, float16: 1.5, 2.9, 5.4 us at 16, 32, 64 rows of 256 units; 2.2, 4.1, 8.3 us of 1,024.
    ("torch", "forward"): _Persistent(0.0, 79.0, 0.052),
    ("torch", "backward"): _Persistent(1800.0, 95.0, 0.1),
    # RNN of 256 units, float32: 1.8, 1.9, 2.5, 4.2 us at 16, 32, 64, 256 rows.
    ("small", "forward"): _Persistent(1600.0, 10.5, 0.0),
    ("small", "backward"): _Persistent(2000.0, 16.5, 0.0),
    # LSTM of 128 units, float32 (RNN_blockPersist_fp_LSTM): 5.8 us at 256 rows.
    ("cudnn", "forward"): _Persistent(5800.0, 0.0, 0.0),
}


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
    mode = int(call.arg("mode", _LSTM) or 0)  # type: ignore[arg-type]
    gates = _GATES.get(mode, _GATES[_LSTM])
    steps, batch = _steps(call, source)
    works = []
    for layer in range(layers):
        width = source.shape[-1] if layer == 0 else hidden * directions
        works.append(_product(steps * batch, gates * hidden * directions, width, source.dtype, backward))
        if backward:  # gradients of the recurrent weights, of all steps at once
            works.append(_product(steps * batch, gates * hidden * directions, hidden, source.dtype, backward=False))
    direction = "backward" if backward else "forward"
    persistent = _persistent(call, source, mode, hidden, layers * directions, batch, direction)
    chain = Work(
        family=FAMILY,
        curves=("/".join(("rnn_chain", direction, *([persistent] if persistent else ()), source.dtype)),),
        at=(steps, batch, gates, hidden, layers, directions),
        flops=2 * steps * batch * directions * gates * hidden * hidden * layers * (2 if backward else 1),
        num_kernels=layers * directions * (1 if persistent else 2 * steps),
    )
    return (*works, chain)


def _persistent(
    call: OpCall, source: TensorSpec, mode: int, hidden: int, chains: int, batch: int, direction: str
) -> str | None:
    """Who asks for one kernel that walks through time, if anyone does."""
    if mode < _LSTM and hidden <= _SMALL_UNITS[direction]:
        return "small"
    if walks_through_time(source.dtype, mode, hidden, source.shape[-1], batch, chains, packed=bool(call.arg("batch_sizes"))):
        return "torch"
    return "cudnn" if hidden <= 128 and direction == "forward" else None


def walks_through_time(
    dtype: str, mode: int, hidden: int, width: int, batch: int, chains: int, *, packed: bool
) -> bool:
    """Whether torch asks for CUDNN_RNN_ALGO_PERSIST_STATIC (use_persist_common_heuristics, use_persist_device_heuristics).

    chains: layers x directions.
    """
    aligned = hidden % 128 == 0 and width % 128 == 0 and batch % 8 == 0
    fits = chains == 1 and hidden <= 1024 and batch <= 128
    is_fast = mode == _LSTM or (mode < _LSTM and (batch < 96 or hidden < 896))
    return dtype == "float16" and not packed and aligned and fits and is_fast


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
    """Time of the chains `at` = (steps, batch, gates, hidden, layers, directions)."""
    steps, batch, gates, hidden, layers, directions = at
    _, direction, *persistent, dtype = curve.split("/")
    if persistent:
        kernel = _PERSISTENT[persistent[0], direction]
        step_ns = kernel.step_ns + batch * (kernel.row_ns + kernel.row_ns_per_unit * hidden)
        return steps * layers * directions * step_ns
    kind, size = ("bfloat16", 2) if dtype.endswith("16") else ("tf32", 4)
    chain = _CHAINS[direction, size]
    latency_ns = (chain.latency_ns + chain.latency_ns_per_unit * hidden) * (1.0 if gates > 1 else chain.plain_share)
    work_ns = chain.work_ns + 2.0 * batch * gates * hidden * hidden / (roof.flops_per_ns(kind) * chain.peak_share)
    work_ns += gates * hidden * hidden * size / (roof.bytes_per_ns * _WEIGHTS_OVER_MEMORY)
    if directions > 1:
        return steps * layers * (latency_ns + directions * work_ns)
    return steps * (latency_ns + layers * work_ns)
