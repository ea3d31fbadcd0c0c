"""torchvision's C++ operators (non-maximum suppression, pooling of regions, deformable convolution) without its library.

The wheels of PyPI link libtorch_cuda and libcudart, which a CPU build of torch lacks: loading fails, and then even pure Python
models such as ResNet cannot be imported. Where that happened, the operators are declared, with the schemas of
torchvision/csrc/ops/*.cpp (TORCH_LIBRARY_FRAGMENT(torchvision, m)); torchvision's own meta functions give the shapes, its
gradients are those of its autograd kernels, and one launch stands for the work.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import unknown_values

_ROIS = "Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_GRAD = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_DEFORM = (
    "Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, "
    "SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask"
)
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align({_ROIS}, int sampling_ratio, bool aligned) -> Tensor",
    "qroi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_GRAD}, {_SHAPE}, int sampling_ratio, bool aligned) -> Tensor",
    f"roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_GRAD}, {_SHAPE}) -> Tensor",
    f"ps_roi_align({_ROIS}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_GRAD}, int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool({_ROIS}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_GRAD}, {_SHAPE}) -> Tensor",
    f"deform_conv2d(Tensor input, {_DEFORM}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, Tensor input, {_DEFORM}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "_cuda_version() -> int",
)
_libraries: list[Any] = []  # registrations live as long as these


def after(extension: ModuleType) -> None:
    """`extension` is torchvision.extension, which has just tried to load the library."""
    if extension._has_ops():
        return
    declared = torch.library.Library("torchvision", "FRAGMENT")
    kernels = torch.library.Library("torchvision", "IMPL")
    _libraries.extend((declared, kernels))
    for schema in SCHEMAS:
        declared.define(schema)
    kernels.impl("nms", nms, "CUDA")
    kernels.impl("_cuda_version", lambda: -1, "CompositeExplicitAutograd")  # -1: not built with CUDA; nothing to compare
    extension._has_ops = lambda: True  # type: ignore[attr-defined]
    _register_gradients()


def nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """torchvision::nms: the indices of the boxes kept. How many depends on data: as many as an unknown mask selects."""
    from phantora.intercept.custom_ops import launch_foreign
    from phantora.intercept.host_sync import sync_current_stream

    unknown_values.count("torchvision::nms")
    kept = torch.empty((unknown_values.num_selected(dets.shape[0]),), dtype=torch.int64, device=dets.device)
    launch_foreign("torchvision::nms", [dets, scores], [kept])
    sync_current_stream(dets.get_device())
    return kept


def _register_gradients() -> None:
    """As torchvision/csrc/ops/autograd/*_kernel.cpp."""
    torch.library.register_autograd("torchvision::roi_align", _roi_align_gradient, setup_context=_save_roi_align)
    torch.library.register_autograd("torchvision::roi_pool", _pool_gradient("_roi_pool_backward"), setup_context=_save_pool)
    torch.library.register_autograd("torchvision::ps_roi_pool", _pool_gradient("_ps_roi_pool_backward"), setup_context=_save_pool)
    torch.library.register_autograd("torchvision::ps_roi_align", _ps_roi_align_gradient, setup_context=_save_pool)
    torch.library.register_autograd("torchvision::deform_conv2d", _deform_gradient, setup_context=_save_deform)


def _save_roi_align(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.shape, ctx.numbers = inputs[0].shape, inputs[2:]


def _roi_align_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    scale, height, width, sampling_ratio, aligned = ctx.numbers
    (rois,) = ctx.saved_tensors
    backward = torch.ops.torchvision._roi_align_backward
    return (backward(grad, rois, scale, height, width, *ctx.shape, sampling_ratio, aligned), *[None] * 6)


def _save_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(inputs[1], output[1])
    ctx.shape, ctx.numbers = inputs[0].shape, inputs[2:]


def _pool_gradient(name: str) -> Any:
    def gradient(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
        backward = getattr(torch.ops.torchvision, name)
        return (backward(grad, *ctx.saved_tensors, *ctx.numbers, *ctx.shape), *[None] * 4)

    return gradient


def _ps_roi_align_gradient(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    backward = torch.ops.torchvision._ps_roi_align_backward
    return (backward(grad, *ctx.saved_tensors, *ctx.numbers, *ctx.shape), *[None] * 5)


def _save_deform(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.numbers = inputs[5:]


def _deform_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    source, weight, offset, mask, bias = ctx.saved_tensors
    grads = torch.ops.torchvision._deform_conv2d_backward(grad, source, weight, offset, mask, bias, *ctx.numbers)
    return (*grads, *[None] * 9)
