"""Softmax and the losses built on it."""

from __future__ import annotations

from dataclasses import replace

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families.elementwise import pointwise
from phantora.compute.families.streaming import items, rows, stream
from phantora.compute.work import Work, base_name, dense, first_tensor, is_contiguous, item_bytes, nbytes, numel, read, written

FAMILY = "softmax"
LOSS_FAMILY = "loss"

# fmt: off
_SOFTMAX = {
    "_softmax": ("softmax",), "softmax": ("softmax",), "_safe_softmax": ("softmax",), "_masked_softmax": ("softmax",),
    "_log_softmax": ("log_softmax",), "log_softmax": ("log_softmax",),
    "_softmax_backward_data": ("softmax_backward",),
    "_masked_softmax_backward": ("softmax_backward",),
    "_log_softmax_backward_data": ("log_softmax_backward",),
}
# fmt: on
_NLL = ("nll_loss_forward", "nll_loss2d_forward", "nll_loss_backward", "nll_loss2d_backward")
# fmt: off
_POINTWISE_LOSSES = (
    "mse_loss", "mse_loss_backward", "l1_loss", "smooth_l1_loss", "smooth_l1_loss_backward", "huber_loss",
    "huber_loss_backward", "binary_cross_entropy", "binary_cross_entropy_backward", "soft_margin_loss",
    "multilabel_margin_loss_forward", "multi_margin_loss", "kl_div",
)
# fmt: on
_CTC = ("_ctc_loss", "_ctc_loss_backward", "_cudnn_ctc_loss")
# Across an outer dimension each thread walks a column: 3.0 and 1.7 times rows of as many elements on the H200
# (float32, 150 columns of 4 million: 3.77 and 2.69 ms).
_ACROSS = {False: 3.0, True: 1.6}
NAMES = tuple(_SOFTMAX) + _NLL + _POINTWISE_LOSSES + _CTC


def describe(call: OpCall) -> tuple[Work, ...]:
    name = base_name(call.name)
    if name in _SOFTMAX:
        return _softmax(call, name)
    if name in _NLL:
        return _nll(call, name)
    if name in _CTC:
        source = first_tensor(call, "log_probs") or first_tensor(call)
        return () if source is None else (_ctc(source, name),)
    return _pointwise_loss(call, name)


def _ctc(log_probs: TensorSpec, name: str) -> Work:
    """A block for each text walks through time: 0.53 us a step forward; backward 0.73, and 0.3 to collect the gradients
    (H200, 400 and 499 steps of 32 and 8 texts). log_probs: (steps, batch, classes)."""
    backward = name.endswith("backward")
    chain = rows(LOSS_FAMILY, ("ctc_loss_backward" if backward else "ctc_loss",), "float32", 1, log_probs.shape[0])
    return replace(chain, bytes=(3 if backward else 1) * nbytes(log_probs), num_kernels=3 if backward else 1)


def _softmax(call: OpCall, name: str) -> tuple[Work, ...]:
    source = first_tensor(call)
    if source is None or not source.shape:
        return ()
    given = call.arg("dim", -1)
    dim = given if isinstance(given, int) else -1
    columns = max(source.shape[dim % len(source.shape)], 1)
    inner = dim in (-1, len(source.shape) - 1)
    # Up to 1,024 columns a warp keeps a row in registers (PersistentSoftmax.cuh), longer rows take a block each.
    length = "" if columns <= 1024 else "-long" if columns * item_bytes(source.dtype) % 16 == 0 else "-odd"
    names = tuple(n + length for n in _SOFTMAX[name])
    scale = 1.0 if inner else _ACROSS["backward" in name]
    core = rows(FAMILY, names, source.dtype, numel(source) // columns, columns, scale=scale)
    copies = tuple(_to_contiguous(t) for t in read(call) if len(t.shape) > 1 and not is_contiguous(t))
    if name == "_softmax_backward_data":  # grad * output is a kernel of its own (SoftMax.cu)
        size = nbytes(source)
        return (*copies, replace(core, bytes=core.bytes + 3 * size, num_kernels=2))
    return (*copies, core)


def _to_contiguous(tensor: TensorSpec) -> Work:
    """What SoftMax.cu makes of an input with other strides first."""
    return pointwise(FAMILY, "clone", [tensor], [dense(tensor.shape, tensor.dtype)])


def _nll(call: OpCall, name: str) -> tuple[Work, ...]:
    """Forward: one block (of a picture: a thread for each position) picks a value per row. Backward: zeros, then one value per row."""
    source = first_tensor(call, "self") or first_tensor(call)
    target = first_tensor(call, "target")
    if source is None:
        return ()
    count = numel(target) if target is not None else source.shape[0]
    if "2d" in name:  # a thread for each position
        pick = items(LOSS_FAMILY, name.replace("_forward", ""), count, 16 * count)
    else:
        pick = rows(LOSS_FAMILY, ("nll_loss",), "float32", count, max(numel(source) // max(count, 1), 1))
    if not name.endswith("backward"):
        return (pick,)
    zeros = stream(LOSS_FAMILY, ("zero_",), source.dtype, sum(map(nbytes, written(call))) or nbytes(source))
    return (zeros, pick)


def _pointwise_loss(call: OpCall, name: str) -> tuple[Work, ...]:
    """A pointwise kernel, and a reduction when the loss is one number."""
    sources, targets = read(call), written(call)
    widest = max(sources, key=numel, default=None)
    if widest is None:
        return ()
    if targets and max(map(numel, targets)) > 1:
        return (pointwise(LOSS_FAMILY, name, sources, targets),)
    return (
        pointwise(LOSS_FAMILY, name, sources, [widest]),
        stream(LOSS_FAMILY, ("sum",), widest.dtype, nbytes(widest)),
    )
