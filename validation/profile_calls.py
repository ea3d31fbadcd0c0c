"""Operator calls rebuilt from what profilers write: names and input shapes, with dtypes and strides where they exist.

Profilers record inputs only. Outputs are inferred here by the shape rules of the operators that occur in the profiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from phantora.compute.call import OpCall, TensorSpec, Value

# Argument names by position (native_functions.yaml), as far as prices look at them; '-' for those that do not matter.
_SCHEMAS: dict[str, str] = {
    "mm": "self mat2",
    "bmm": "self mat2",
    "addmm": "self mat1 mat2",
    "native_layer_norm": "input normalized_shape weight bias",
    "native_layer_norm_backward": "grad_out input normalized_shape mean rstd weight bias",
    "sum": "self dim keepdim",
    "mean": "self dim keepdim",
    "_softmax": "self dim",
    "_log_softmax": "self dim",
    "_log_softmax_backward_data": "grad_output output dim",
    "cumsum": "self dim",
    "nll_loss_forward": "self target weight",
    "nll_loss_backward": "grad_output self target",
    "gather": "self dim index",
    "embedding_dense_backward": "grad_output indices num_weights",
    "index_add_": "self dim index source alpha",
    "native_dropout": "input p train",
    "scatter_add_": "self dim index src",
    "scatter_": "self dim index src",
    "scatter_reduce_": "self dim index src reduce",
    "_index_put_impl_": "self indices values accumulate",
    "index": "self indices",
    "copy_": "self src",
    "native_dropout_backward": "grad_output mask",
    "cudnn_convolution": "self weight padding stride dilation groups",
    "cat": "tensors dim",
    "linalg_vector_norm": "self ord dim",
    "convolution_backward": "grad_output input weight bias_sizes stride padding dilation transposed output_padding "
    "groups output_mask",
    "_cudnn_attention_forward": "query key value attn_bias - - - - - dropout_p is_causal",
    "_cudnn_attention_backward": "grad_out query key value out logsumexp - - attn_bias - - - - dropout_p is_causal",
    "native_batch_norm": "input weight bias running_mean running_var training",
    "cudnn_batch_norm": "input weight bias running_mean running_var training",
    "native_batch_norm_backward": "grad_out input weight",
    "cudnn_batch_norm_backward": "input grad_output weight",
    "max_pool2d_with_indices": "self",
    "max_pool2d_with_indices_backward": "grad_output self",
    "_embedding_bag": "weight indices offsets",
    "_embedding_bag_dense_backward": "grad indices offset2bag",
    "fill_": "self value",
    "arange": "- - -",
    "_local_scalar_dense": "self",
}
_COMPARISONS = ("ne", "eq", "lt", "gt", "le", "ge", "isfinite", "isnan", "logical_not")


def contiguous(shape: Sequence[int], dtype: str, order: Sequence[int] | None = None) -> TensorSpec:
    """A dense tensor; `order` lists dimensions from the slowest to the fastest."""
    stride, expected = [0] * len(shape), 1
    for dim in reversed(list(order) if order else range(len(shape))):
        stride[dim] = expected
        expected *= shape[dim]
    return TensorSpec(tuple(shape), tuple(stride), dtype)


def channels_last(shape: Sequence[int], dtype: str) -> TensorSpec:
    return contiguous(shape, dtype, (0, 2, 3, 1))


def make_call(name: str, values: Sequence[Value], flags: tuple[tuple[str, Value], ...] = ()) -> OpCall | None:
    """The call of aten::`name` with `values` by position; None when an output's shape cannot be told."""
    schema = _SCHEMAS.get(name, "").split()
    args = tuple((schema[i] if i < len(schema) else f"arg{i}", value) for i, value in enumerate(values))
    args = tuple((key, value) for key, value in args if key != "-")
    if any(key == "dropout_p" and value for key, value in args):
        flags += (("dropout", True),)
    bare = OpCall(f"aten::{name}", args=args, flags=flags)
    if name.endswith("_") and not name.startswith("_local"):
        first = args[0][0] if args else ""
        outputs = (args[0][1],) if args and isinstance(args[0][1], TensorSpec) else ()
        return OpCall(bare.name, args=args, outputs=outputs, mutated=(first,), flags=flags)
    outputs = _outputs(name, bare)
    return None if outputs is None else OpCall(bare.name, args=args, outputs=outputs, flags=flags)


def _outputs(name: str, call: OpCall) -> tuple[TensorSpec, ...] | None:
    tensors = [value for _, value in call.args if isinstance(value, TensorSpec)]
    if name in ("mm", "bmm", "addmm"):
        a, b = tensors[-2], tensors[-1]
        return (contiguous((*a.shape[:-1], b.shape[-1]), a.dtype),)
    if name in ("sum", "mean", "linalg_vector_norm"):
        return (_reduced(tensors[0], call.arg("dim")),) if tensors else None
    if name == "cat":
        return _joined(call)
    if name == "cudnn_convolution":
        return _convolved(call, tensors)
    if name == "convolution_backward":
        return tuple(tensors[1:3])
    if name in (
        "native_layer_norm_backward",
        "native_batch_norm_backward",
        "cudnn_batch_norm_backward",
        "nll_loss_backward",
    ):
        return (tensors[1],) if len(tensors) > 1 else None
    if name in ("native_batch_norm", "cudnn_batch_norm"):
        return (tensors[0],)
    if name == "embedding_dense_backward":
        rows = call.arg("num_weights")
        return (contiguous((rows, tensors[0].shape[-1]), tensors[0].dtype),) if isinstance(rows, int) else None
    if name == "max_pool2d_with_indices":
        n, c, h, w = tensors[0].shape
        half = _like(tensors[0], (n, c, h // 2, w // 2))
        return half, TensorSpec(half.shape, half.stride, "int64")
    if name == "max_pool2d_with_indices_backward":
        return (tensors[1],)
    if name == "gather":
        index = tensors[-1] if tensors[-1].dtype == "int64" else tensors[1]
        return (contiguous(index.shape, tensors[0].dtype),)
    if name == "nll_loss_forward":
        return (TensorSpec((), (), tensors[0].dtype),)
    return _pointwise_outputs(name, call, tensors)


def _pointwise_outputs(name: str, call: OpCall, tensors: list[TensorSpec]) -> tuple[TensorSpec, ...] | None:
    if name in ("_cudnn_attention_forward", "_cudnn_attention_backward"):
        return tuple(tensors[:1] if name.endswith("forward") else tensors[1:4])
    if not tensors:
        return None
    shape = _broadcast([t.shape for t in tensors])
    if shape is None:
        return None
    dtype = "bool" if name in _COMPARISONS else _promoted(tensors)
    model = next((t for t in tensors if t.shape == shape and 0 not in t.stride), None)
    stride = model.stride if model is not None and _is_dense(model) else contiguous(shape, dtype).stride
    out = TensorSpec(shape, stride, dtype)
    return (out, TensorSpec(shape, stride, "bool")) if name == "native_dropout" else (out,)


def _is_dense(tensor: TensorSpec) -> bool:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride)) == math.prod(tensor.shape)


def _like(tensor: TensorSpec, shape: tuple[int, ...]) -> TensorSpec:
    last = len(shape) == 4 and tensor.stride[1] == 1
    return channels_last(shape, tensor.dtype) if last else contiguous(shape, tensor.dtype)


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded))
    fits = all(size in (1, whole) for shape in padded for size, whole in zip(shape, result))
    return result if fits else None


def _promoted(tensors: list[TensorSpec]) -> str:
    wide = [t for t in tensors if t.shape] or tensors
    kinds = {t.dtype for t in wide}
    for kind in ("float64", "float32", "bfloat16", "float16", "int64", "int32", "bool"):
        if kind in kinds:
            return kind
    return wide[0].dtype


def _reduced(tensor: TensorSpec, dims: Value) -> TensorSpec:
    chosen = (
        (dims,)
        if isinstance(dims, int)
        else dims
        if isinstance(dims, tuple) and dims
        else tuple(range(len(tensor.shape)))
    )
    gone = {int(d) % max(len(tensor.shape), 1) for d in chosen}  # type: ignore[arg-type]
    return contiguous([size for i, size in enumerate(tensor.shape) if i not in gone], tensor.dtype)


def _joined(call: OpCall) -> tuple[TensorSpec, ...] | None:
    parts, dim = call.arg("tensors"), call.arg("dim", 0)
    if not isinstance(parts, tuple) or not parts or not isinstance(parts[0], TensorSpec):
        return None
    shape = list(parts[0].shape)
    shape[int(dim)] = sum(part.shape[int(dim)] for part in parts)  # type: ignore[union-attr,arg-type]
    return (contiguous(shape, parts[0].dtype),)


def _convolved(call: OpCall, tensors: list[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Without recorded stride and padding, as ResNet has them: 7x7 halves the image, all others keep it."""
    x, w = tensors[:2]
    stride, padding = call.arg("stride"), call.arg("padding")
    guess = 2 if w.shape[2] == 7 else 1
    s = int(stride[0]) if isinstance(stride, tuple) and stride else guess  # type: ignore[arg-type]
    p = int(padding[0]) if isinstance(padding, tuple) and padding else w.shape[2] // 2  # type: ignore[arg-type]
    size = [(n + 2 * p - k) // s + 1 for n, k in zip(x.shape[2:], w.shape[2:])]
    return (_like(x, (x.shape[0], w.shape[0], *size)),)
