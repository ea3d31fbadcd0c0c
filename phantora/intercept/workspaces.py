"""Memory that CUDA's libraries take from the caching allocator: cuBLAS's workspaces, which stay, and temporaries.

ATen keeps one cuBLAS handle per host thread, and for each (handle, stream) one workspace; cuBLASLt has its own per
(handle, stream), taken when an epilogue needs it (addmm with a bias vector, _scaled_mm). They are never given back,
unless the script calls torch._C._cuda_clearCublasWorkspaces(). Sizes: aten/src/ATen/cuda/CublasHandlePool.cpp; read on
an H200 (torch 2.11): 32 MiB for a first mm, bmm, mv or linalg.inv, 1 MiB more for a first addmm, 32 MiB more for the
autograd thread, and the same again on a side stream. So a training script with biases holds 65 MiB.

Taken when a GEMM comes through Python, that is at the first call of each signature. A signature that is planned already
and then runs on another thread or stream (recomputed addmm of activation checkpointing: 1 MiB) takes none.

Temporaries (workspaces of convolutions, phantora.memory.convolution; others, phantora.memory.temporaries) are taken at
every call, by native code too.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any

import torch
from torch import Tensor

from phantora.compute.families.rnn import walks_through_time
from phantora.intercept.flags import GEMMS, flags_of
from phantora.memory import convolution
from phantora.memory.temporaries import attention_backward_bytes, embedding_backward_bytes, recurrent_bytes, sort_bytes

native: Any = sys.modules["phantora_native"]

_KIB = 1 << 10
_HOPPER_OR_LATER_BYTES = 32 * 1024 * _KIB  # 4096 KiB x 8
_OLDER_BYTES = (4096 * 2 + 16 * 8) * _KIB  # :4096:2:16:8
_LT_DEFAULT_KIB = 1024

_TAKES_LT = frozenset(("addmm", "_addmm_activation", "_scaled_mm", "_scaled_grouped_mm", "_int_mm"))
_TAKES_CUBLAS = frozenset(
    {name.partition(".")[0] for name in GEMMS} | _TAKES_LT | {"linalg_inv_ex", "linalg_lu_factor_ex"}
)

_ATTENTION_BACKWARD = frozenset(
    ("_scaled_dot_product_cudnn_attention_backward", "_scaled_dot_product_flash_attention_backward")
)

_SOFTMAXES = frozenset(("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"))

_workspaces: dict[tuple[int, int, int, bool], Tensor] = {}


def is_needed(operator: str) -> bool:
    """Whether operator `operator` (no overload) goes through a cuBLAS handle with a workspace."""
    return operator in _TAKES_CUBLAS


def ensure(operator: str, device: int) -> None:
    """Take the workspaces that the calling thread still lacks on its current stream of `device`."""
    place = (threading.get_ident(), device, native.stream(device))
    _take((*place, False), _cublas_bytes(), device)
    if operator in _TAKES_LT:
        _take((*place, True), _lt_bytes(), device)


def temporaries(operator: str, arguments: dict[str, Any], outputs: list[Tensor]) -> tuple[int, ...]:
    """For each result of a call: bytes of a block that is taken and given back once it is there. Empty: of none.

    arguments: by their names in the schema; outputs: their shapes are read.
    """
    if operator == "convolution":
        return _convolution_bytes(arguments, outputs[0])
    if operator == "convolution_backward":
        return _convolution_backward_bytes(arguments)
    if operator in ("_cudnn_rnn", "_cudnn_rnn_backward"):
        return _recurrent_bytes(operator, arguments)
    after_last = _behind_the_last_result(operator, arguments)
    return (*(0 for _ in outputs[1:]), after_last) if after_last and outputs else ()


def _behind_the_last_result(operator: str, arguments: dict[str, Any]) -> int:
    if operator == "embedding_dense_backward":
        grad, indices = arguments["grad_output"], arguments["indices"]
        return embedding_backward_bytes(indices.numel(), int(arguments["num_weights"]), grad.shape[-1])
    if operator == "_embedding_bag_dense_backward":
        return embedding_backward_bytes(
            arguments["indices"].numel(), int(arguments["num_weights"]), arguments["grad"].shape[-1]
        )
    if operator in _ATTENTION_BACKWARD:
        query, key = arguments["query"], arguments["key"]
        if query.dim() == key.dim() == 4:
            return attention_backward_bytes(tuple(query.shape), tuple(key.shape), query.element_size())
    if operator in _SOFTMAXES:  # an input with other strides is copied first (SoftMax.cu)
        given = (arguments.get(name) for name in ("self", "grad_output", "output"))
        return sum(t.nbytes for t in given if isinstance(t, Tensor) and t.dim() > 1 and not t.is_contiguous())
    if operator == "roll" and len(arguments["dims"]) > 1:  # one dimension after the other
        return arguments["self"].nbytes
    if operator == "sort" and arguments["self"].dim():
        values = arguments["self"]
        return sort_bytes(tuple(values.shape), arguments.get("dim", -1), values.element_size())
    return 0


def _recurrent_bytes(operator: str, arguments: dict[str, Any]) -> tuple[int, ...]:
    """While the reserve space is made (forward), or the gradients of the weights (backward): the fourth result."""
    source, layers = arguments["input"], int(arguments["num_layers"])
    directions = 2 if arguments["bidirectional"] else 1
    rows = source.numel() // max(source.shape[-1], 1)
    hidden, item_bytes = int(arguments["hidden_size"]), source.element_size()
    backward = operator.endswith("backward")
    walks = walks_through_time(
        str(source.dtype).removeprefix("torch."), int(arguments["mode"]), hidden, source.shape[-1],
        rows // max(_num_steps(arguments), 1), layers * directions, packed=bool(arguments["batch_sizes"]),
    )  # fmt: skip
    num_bytes = recurrent_bytes(
        rows * hidden * directions * item_bytes, sum(w.numel() for w in arguments["weight"]) * item_bytes, layers, directions,
        backward=backward, training=bool(arguments["train"]), walks_through_time=walks,
    )  # fmt: skip
    return (0, 0, 0, num_bytes) if backward else (0, 0, 0, num_bytes, 0)


def _num_steps(arguments: dict[str, Any]) -> int:
    if arguments["batch_sizes"]:
        return len(arguments["batch_sizes"])
    return arguments["input"].shape[1 if arguments["batch_first"] else 0]


def _convolution_bytes(arguments: dict[str, Any], output: Tensor) -> tuple[int, ...]:
    described = _convolution(arguments, arguments["input"], arguments["weight"], output)
    return () if described is None else (convolution.forward_bytes(described),)


def _convolution_backward_bytes(arguments: dict[str, Any]) -> tuple[int, ...]:
    described = _convolution(arguments, arguments["input"], arguments["weight"], arguments["grad_output"])
    if described is None:
        return ()
    wants_input, wants_weight, _ = arguments["output_mask"]
    return (
        convolution.forward_bytes(described) if wants_input else 0,
        convolution.weight_gradient_bytes(described) if wants_weight else 0,
        0,
    )


def _convolution(
    arguments: dict[str, Any], given: Tensor, weight: Tensor, made: Tensor
) -> convolution.Convolution | None:
    """None: not cuDNN's."""
    if not torch.backends.cudnn.enabled or not given.is_floating_point() or not given.numel() or not made.numel():
        return None
    if arguments["transposed"]:
        given, made = made, given
    plain = (("stride", 1), ("padding", 0), ("dilation", 1))
    return convolution.Convolution(
        input=tuple(given.shape),
        weight=tuple(weight.shape),
        output=tuple(made.shape),
        item_bytes=given.element_size(),
        uses_tensor_cores=given.element_size() == 2
        or (given.dtype == torch.float32 and dict(flags_of("convolution"))["cudnn_allow_tf32"]),
        is_channels_last=_is_channels_last(arguments["input"]) or _is_channels_last(weight),
        is_strided=any(value != usual for name, usual in plain for value in arguments[name]),
        groups=arguments["groups"],
        num_sms=torch.cuda.get_device_properties(native.device()).multi_processor_count,
    )


def _is_channels_last(tensor: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(tensor.dim())
    return wanted is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=wanted)


def clear() -> None:
    """torch._C._cuda_clearCublasWorkspaces()"""
    _workspaces.clear()


def _take(key: tuple[int, int, int, bool], num_bytes: int, device: int) -> None:
    if num_bytes and key not in _workspaces:
        _workspaces[key] = torch.ops.aten.empty.memory_format(
            [num_bytes], dtype=torch.uint8, device=torch.device("cuda", device)
        )


def _cublas_bytes() -> int:
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if config:
        pairs = re.findall(r":([0-9]+):([0-9]+)", config)
        return sum(int(size) * int(count) for size, count in pairs) * _KIB if pairs else 4096 * 8 * _KIB
    return _HOPPER_OR_LATER_BYTES if torch.cuda.get_device_capability()[0] >= 9 else _OLDER_BYTES


def _lt_bytes() -> int:
    return int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", _LT_DEFAULT_KIB)) * _KIB
