"""Matrix products, convolutions, normalizations: which dtypes may meet in one call."""

from __future__ import annotations

import torch

from phantora.intercept.checks.helpers import Arguments, Rule, c_type_name, require, require_type, type_name

_HALVES = (torch.float16, torch.bfloat16)


# ------------------------------------------------------------------ matrix products (LinearAlgebra.cpp, cuda/Blas.cpp)


def _mm(a: Arguments) -> None:
    one, other = a["self"], a["mat2"]
    message = f"expected mat1 and mat2 to have the same dtype, but got: {c_type_name(one)} != {c_type_name(other)}"
    require(one.dtype == other.dtype, message)


def _addmm(a: Arguments) -> None:
    self, mat1, mat2 = a["self"], a["mat1"], a["mat2"]
    if a.get("out_dtype") is None:
        require(
            self.dtype == mat2.dtype,
            f"self and mat2 must have the same dtype, but got {type_name(self)} and {type_name(mat2)}",
        )
    require(
        mat1.dtype == mat2.dtype,
        f"mat1 and mat2 must have the same dtype, but got {type_name(mat1)} and {type_name(mat2)}",
    )


def _addmv(a: Arguments) -> None:
    self, mat, vec = a["self"], a["mat"], a["vec"]
    require(
        self.dtype == mat.dtype == vec.dtype,
        f"addmv input tensors must have the same dtype, but got {type_name(self)}, {type_name(mat)}, and "
        f"{type_name(vec)}",
    )


def _bmm(a: Arguments) -> None:
    require_type(a["self"], a["mat2"])


def _baddbmm(a: Arguments) -> None:
    self, batch1, batch2 = a["self"], a["batch1"], a["batch2"]
    if a.get("out_dtype") is None:
        require(
            self.dtype == batch1.dtype,
            f"Input dtypes must be the same, got: input {c_type_name(self)}, batch1: {c_type_name(batch1)}, "
            f"batch2: {c_type_name(batch2)}",
        )
    require_type(batch1, batch2)


def _addbmm(a: Arguments) -> None:
    """One addmm_ after the other."""
    _addmm({"self": a["self"], "mat1": a["batch1"], "mat2": a["batch2"]})


def _cdist(a: Arguments) -> None:
    require_type(a["x1"], a["x2"])


# ------------------------------------------------------------------ convolution and normalization


def _convolution(a: Arguments) -> None:
    """check_input_same_type_as_parameters and check_shape_forward in Convolution.cpp."""
    require(min(a["padding"], default=0) >= 0, "negative padding is not supported")
    require(min(a["stride"], default=1) > 0, "non-positive stride is not supported")
    require(min(a["dilation"], default=1) > 0, "dilation should be greater than zero")
    input = a["input"]
    for kind in ("weight", "bias"):
        parameter = a[kind]
        if parameter is None or (parameter.dtype, parameter.device.type) == (input.dtype, input.device.type):
            continue
        extra = "" if input.is_cuda else " or input should be a MKLDNN tensor and weight is a dense tensor"
        raise RuntimeError(
            f"Input type ({input.type()}) and {kind} type ({parameter.type()}) should be the same{extra}"
        )


def _layer_or_group_norm(a: Arguments) -> None:
    """cuda/layer_norm_kernel.cu and cuda/group_norm_kernel.cu: one type; only the CPU's kernels mix two."""
    if a["input"].numel():
        require_type(a["input"], a["weight"], a["bias"])


def _batch_norm(a: Arguments) -> None:
    """cudnn/BatchNorm.cpp and cuda/Normalization.cu: float parameters may go with half inputs, no other mixture."""
    input, weight = a["input"], a["weight"]
    if weight is None or not input.numel():
        return
    if input.dtype not in _HALVES or weight.dtype != torch.float32:
        require_type(input, weight)
    if input.dtype not in _HALVES:
        require_type(weight, a["bias"], a["running_mean"], a["running_var"])


RULES: dict[str, Rule] = {
    "mm": _mm,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "addmv": _addmv,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "addbmm": _addbmm,
    "_cdist_forward": _cdist,
    "convolution": _convolution,
    "native_layer_norm": _layer_or_group_norm,
    "native_group_norm": _layer_or_group_norm,
    "native_batch_norm": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm,
    "_batch_norm_with_update": _batch_norm,
}
