"""Which kinds of elements the CUDA kernels of an operator take; meta kernels take every kind.

Only operators whose CUDA kernel is known to refuse a kind are listed. Sources: the AT_DISPATCH macros of the files in
aten/src/ATen/native/cuda, and `dtypesIfCUDA` of torch/testing/_internal/common_methods_invocations.py, which torch's
own tests hold against the kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

# As c10::ScalarType is printed in messages of torch.
SCALAR_TYPE_NAMES: dict[torch.dtype, str] = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int8: "Char", torch.int16: "Short", torch.int32: "Int", torch.int64: "Long", torch.uint8: "Byte",
    torch.bool: "Bool", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble", torch.float8_e4m3fn: "Float8_e4m3fn", torch.float8_e5m2: "Float8_e5m2",
    torch.float8_e4m3fnuz: "Float8_e4m3fnuz", torch.float8_e5m2fnuz: "Float8_e5m2fnuz",
}  # fmt: skip

# One letter per kind: f float32 and float64, h float16 and bfloat16, i integers, b bool, c complex64 and complex128, q
# float8. Other dtypes (unsigned integers of 16 bits and more, complex32) have none and are never refused.
_KINDS: dict[torch.dtype, str] = {
    torch.float32: "f", torch.float64: "f", torch.float16: "h", torch.bfloat16: "h", torch.int8: "i", torch.int16: "i",
    torch.int32: "i", torch.int64: "i", torch.uint8: "i", torch.bool: "b", torch.complex64: "c",
    torch.complex128: "c", torch.float8_e4m3fn: "q", torch.float8_e5m2: "q",
}  # fmt: skip

_OPERATORS_BY_KINDS: dict[str, str] = {
    "fh": """_softmax _log_softmax gelu glu elu leaky_relu softplus hardswish hardsigmoid mish softshrink hardshrink
        log_sigmoid_forward rrelu_with_noise native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm
        avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d
        max_pool2d_with_indices max_pool3d_with_indices fractional_max_pool2d fractional_max_pool3d upsample_linear1d
        upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d mse_loss smooth_l1_loss huber_loss
        binary_cross_entropy nll_loss_forward nll_loss2d_forward multi_margin_loss grid_sampler_2d grid_sampler_3d
        native_dropout hypot nextafter frac frexp""",
    "fhc": "mm addmm _addmm_activation addmv bmm baddbmm dot vdot convolution silu renorm logcumsumexp normal_",
    "fc": """linalg_cholesky_ex _linalg_svd linalg_qr _linalg_eigh linalg_eig linalg_inv_ex linalg_lu_factor_ex
        _linalg_solve_ex _linalg_det _linalg_slogdet linalg_lu linalg_lstsq linalg_householder_product geqrf ormqr
        cholesky_inverse _cholesky_solve_helper triangular_solve linalg_solve_triangular""",
    "f": "_cdist_forward _pdist_forward _ctc_loss igamma igammac polar",
    "fhi": "ceil floor round trunc fmod remainder threshold topk argmax argmin kthvalue median nanmedian",
    "fhib": """_cummax_helper _cummin_helper fmax fmin ge gt le lt max min maximum minimum aminmax amax amin mode sort
        atan2 copysign erf erfc erfinv lgamma digamma logit heaviside isposinf isneginf sign signbit xlogy i0 clamp
        clamp_min clamp_max relu""",
    "fhbc": "im2col",
    "ib": "bitwise_and bitwise_or bitwise_xor bitwise_not",
    "i": "gcd lcm bitwise_left_shift bitwise_right_shift __lshift__ __rshift__",
    "fhibc": "add sub mul div sum mean exp",
}  # fmt: skip
SUPPORTED: dict[str, str] = {name: kinds for kinds, names in _OPERATORS_BY_KINDS.items() for name in names.split()}

# Elementwise on the common dtype of two arguments.
_PROMOTING = frozenset(
    """fmax fmin ge gt le lt max min maximum minimum atan2 copysign heaviside xlogy fmod remainder hypot nextafter
    bitwise_and bitwise_or bitwise_xor gcd lcm bitwise_left_shift bitwise_right_shift mse_loss smooth_l1_loss
    huber_loss add sub mul div igamma igammac clamp clamp_min clamp_max""".split()
)

# Names in the macros, as messages have them; the others are made up as <operator>_cuda.
_KERNEL_NAMES: dict[str, str] = {
    "mm": "addmm_cuda", "_addmm_activation": "addmm_cuda", "bmm": "baddbmm_cuda", "dot": "dot",
    "addmv": "addmv_impl_cuda", "_softmax": "host_softmax", "_log_softmax": "host_softmax",
    "gelu": "GeluCUDAKernelImpl", "native_layer_norm": "LayerNormKernelImpl", "native_group_norm":
    "GroupNormKernelImpl", "convolution": "slow_conv2d_cuda", "normal_": "normal_kernel_cuda",
}  # fmt: skip


def check_dtype(name: str, tensors: list[Tensor]) -> None:
    """Raise as the CUDA kernel of operator `name` (without overload and trailing '_') does for dtypes it lacks."""
    kinds = SUPPORTED.get(name)
    if kinds is None or not tensors or not tensors[0].numel():  # without elements, many kernels are never reached
        return
    dtype = tensors[0].dtype
    if name in _PROMOTING and len(tensors) > 1:
        _check_promotion(tensors[0], tensors[1])
        dtype = torch.result_type(tensors[0], tensors[1])
    kind = _KINDS.get(dtype)
    if kind is not None and kind not in kinds:
        kernel = _KERNEL_NAMES.get(name, f"{name.strip('_')}_cuda")
        raise NotImplementedError(f'"{kernel}" not implemented for \'{SCALAR_TYPE_NAMES[dtype]}\'')


def _check_promotion(one: Tensor, other: Tensor) -> None:
    """c10::promoteTypes refuses float8 beside another dtype (a number takes the tensor's)."""
    pair = (one.dtype, other.dtype)
    if one.dtype != other.dtype and one.dim() and other.dim() and "q" in [_KINDS.get(dtype) for dtype in pair]:
        names = " and ".join(SCALAR_TYPE_NAMES.get(dtype, str(dtype)) for dtype in pair)
        raise RuntimeError(f"Promotion for Float8 Types is not supported, attempted to promote {names}")
