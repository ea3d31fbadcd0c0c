"""Operators described by a row (op, shapes or numel, dtype and options) -> the operator calls that they stand for.

calls_of(row) -> (calls, note). The names are those of ops_bench.py and of aten. An operator that nothing here knows is
a call with the tensors given, so it is priced by its bytes; the note says so. Raises ValueError for a row that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phantora.compute.described import dense_ops, image_ops, index_ops, list_ops, pointwise_ops, row_ops
from phantora.compute.described.specs import Calls, Row, call, dense, dtype_of, shapes_of
from phantora.compute.families import is_known

__all__ = ["calls_of"]

_MAKERS: dict[str, Callable[[Row], Calls]] = {}


def _register(make: Callable[[Row], Calls], *names: str) -> None:
    _MAKERS.update(dict.fromkeys(names, make))


_register(
    dense_ops.product, "mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "_int_mm", "_addmm_activation"
)
_register(dense_ops.vector_product, "mv")
_register(dense_ops.grouped_product, "_grouped_mm", "grouped_mm")
_register(dense_ops.attention, "sdpa_fwd", "sdpa_bwd", "scaled_dot_product_attention")
for _backend in ("flash", "efficient", "cudnn"):
    _register(
        dense_ops.attention,
        f"_scaled_dot_product_{_backend}_attention",
        f"_scaled_dot_product_{_backend}_attention_backward",
    )
for _conv in ("conv1d", "conv2d", "conv3d", "conv_transpose2d", "convolution", "cudnn_convolution"):
    _register(dense_ops.convolution, _conv, f"{_conv}_backward", f"{_conv}_dgrad", f"{_conv}_wgrad")
_register(dense_ops.recurrent, "lstm", "lstm_backward", "gru", "gru_backward")
_register(pointwise_ops.masked, "where", "masked_fill", "masked_fill_", "native_dropout_backward", "masked_select")
_register(pointwise_ops.dropout, "dropout", "native_dropout")
_register(pointwise_ops.cast, "to", "_to_copy", "to_fp32", "to_bf16", "to_fp16")
_register(pointwise_ops.copy, "clone", "contiguous", "transpose_contiguous")
_register(pointwise_ops.join, "cat", "stack", "concat")
_register(pointwise_ops.fill, "zero_", "fill_", "zeros", "ones", "full", "zeros_like", "arange")
_register(
    pointwise_ops.random,
    "normal_",
    "uniform_",
    "bernoulli_",
    "bernoulli",
    "exponential_",
    "random_",
    "rand",
    "randn",
    "randint",
)
_register(pointwise_ops.finite, "isfinite_all")
_register(pointwise_ops.transfer, "memcpy_h2d", "memcpy_d2h")
_register(
    row_ops.softmax,
    "softmax",
    "log_softmax",
    "softmax_backward",
    "log_softmax_backward",
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
)
for _norm in ("layer_norm", "rms_norm", "native_layer_norm", "_fused_rms_norm"):
    _register(row_ops.layer_norm, _norm, f"{_norm}_backward")
_register(row_ops.group_norm, "group_norm", "group_norm_backward", "native_group_norm", "native_group_norm_backward")
_register(
    row_ops.batch_norm,
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_eval",
    "native_batch_norm",
    "native_batch_norm_backward",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
)
_register(row_ops.nll_loss, "nll_loss", "nll_loss_forward", "nll_loss_backward", "cross_entropy")
_register(row_ops.reduction, *row_ops.REDUCTIONS, "sum_dim", "mean_dim", "max_dim", "norm_dim")
_register(row_ops.scan, "cumsum", "cumprod", "logcumsumexp")
_register(row_ops.sort, "sort", "argsort", "topk", "topk2")
_register(
    row_ops.search,
    "unique",
    "unique_inverse",
    "_unique2",
    "unique_consecutive",
    "nonzero",
    "bincount",
    "histc",
    "multinomial",
    "searchsorted",
    "isin",
    "randperm",
)
_register(index_ops.lookup, "embedding", "index_select", "index", "gather")
_register(index_ops.embedding_backward, "embedding_dense_backward", "embedding_backward")
_register(
    index_ops.embedding_bag,
    "embedding_bag",
    "_embedding_bag",
    "embedding_bag_backward",
    "_embedding_bag_dense_backward",
)
_register(
    index_ops.scatter,
    "index_add",
    "index_add_",
    "index_copy",
    "index_copy_",
    "index_put",
    "index_put_",
    "scatter_add",
    "scatter_add_",
    "scatter",
    "scatter_",
    "scatter_reduce",
    "index_put_accumulate",
)
for _pool in ("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d", "max_pool2d_with_indices"):
    _register(image_ops.pool, _pool, f"{_pool}_backward")
for _mode in ("nearest2d", "bilinear2d", "bicubic2d"):
    _register(image_ops.interpolate, f"upsample_{_mode}", f"upsample_{_mode}_backward")
_register(image_ops.interpolate, "interpolate", "interpolate_backward")
_register(image_ops.fourier, "fft", "fft2", "rfft", "rfft2")
_register(image_ops.grid_sample, "grid_sampler_2d", "grid_sampler_2d_backward", "grid_sample")


def calls_of(row: Any) -> tuple[Calls, str]:
    """(the calls of a row, a note or '')."""
    if not isinstance(row, dict):
        raise ValueError(f"a row is a JSON object, not {type(row).__name__}")
    if not isinstance(row.get("op"), str) or not row["op"]:
        raise ValueError("op is missing")
    row = {**row, "op": _without_overload(row["op"].removeprefix("aten::").removeprefix("aten.").removeprefix("torch."))}
    if row["op"].startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad", "_amp_foreach")):
        return list_ops.tensor_list(row), ""
    make = _MAKERS.get(row["op"])
    if make is not None:
        return make(row), ""
    if _is_pointwise(row):
        return pointwise_ops.pointwise(row), ""
    return _unknown(row), f"{row['op']} is not known: priced by the bytes of its tensors"


def _without_overload(name: str) -> str:
    """'add.Tensor' -> 'add'. (Names of other libraries keep their dots.)"""
    return name if "::" in name else name.partition(".")[0] or name


def _is_pointwise(row: Row) -> bool:
    return row["op"] in _POINTWISE or row["op"].rstrip("_") in _POINTWISE or row["op"].endswith("_scalar")


def _unknown(row: Row) -> Calls:
    dtype = dtype_of(row)
    tensors = [dense(shape, dtype) for shape in shapes_of(row)]
    out = max(tensors, key=lambda t: len(t.shape) and t.shape)
    name = row["op"] if "::" in row["op"] or is_known(row["op"]) else f"unknown::{row['op']}"
    return (call(name, out, **{f"input{i}": tensor for i, tensor in enumerate(tensors)}),)


_POINTWISE = frozenset(
    "add sub mul div rsub pow exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal abs neg sign floor ceil round "
    "trunc frac sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc erfinv sigmoid logit silu gelu relu relu6 "
    "elu celu selu mish softplus hardswish hardsigmoid hardtanh leaky_relu prelu threshold glu log_sigmoid clamp clamp_min "
    "clamp_max maximum minimum fmax fmin fmod remainder atan2 hypot lerp addcmul addcdiv lt le gt ge eq ne logical_and "
    "logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not isnan isinf nan_to_num mse_loss "
    "smooth_l1_loss huber_loss silu_backward gelu_backward sigmoid_backward tanh_backward threshold_backward elu_backward "
    "leaky_relu_backward hardswish_backward softplus_backward mish_backward copy gelu_tanh gelu_tanh_backward pow3 "
    "lerp_tensor digamma lgamma".split()
)
