"""Grouped linear: the products of all local experts, each on its share of the rows.

Transformer Engine issues them to several streams, where they fill the GPU together; here they are one grouped product,
priced as torch's. Its price takes the experts as equally loaded; how many rows there are in all is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.frameworks.priced_like import launch_like
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
from transformer_engine.pytorch.module.base import TransformerEngineBaseModule, get_dummy_wgrad, quantize
from transformer_engine.pytorch.module.linear import _standard_init


class _GroupedLinear(torch.autograd.Function):
    """x [rows, k]; weights [n, k] each; rows are sorted by expert."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, splits: list[int], fuse: bool, num: int, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:num], parameters[num:]
        ctx.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        if ctx.fp8:
            FP8GlobalStateManager.register(2 * num, num)
            quantize(x, True)
            for weight in weights:
                quantize(weight, True)
        ctx.splits, ctx.fuse, ctx.num = splits, fuse, num
        ctx.save_for_backward(x, *parameters)
        out = x.new_empty((x.shape[0], weights[0].shape[0]))
        if x.shape[0]:
            _grouped(x, _stack(weights).transpose(1, 2), None, out, ctx.fp8)
            for part, bias in zip(out.split(splits), biases):
                part.add_(bias)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *parameters = ctx.saved_tensors
        weights, biases = parameters[: ctx.num], parameters[ctx.num :]
        grad = grad.contiguous()
        quantize(grad, ctx.fp8)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        if grad_x is not None and x.shape[0]:
            _grouped(grad, _stack(weights), None, grad_x, ctx.fp8)
        grads = _weight_gradients(weights, grad, x, ctx)
        return grad_x, None, None, None, *grads, *(part.sum(0) for part, _ in zip(grad.split(ctx.splits), biases))


def _weight_gradients(weights: list[Tensor], grad: Tensor, x: Tensor, ctx: Any) -> list[Tensor]:
    """One product whose groups share the rows: [n, rows] x [rows, k]."""
    offsets = torch.empty(len(weights), dtype=torch.int32, device="meta")
    stacked = _stack([weight.main_grad for weight in weights] if ctx.fuse else weights)  # type: ignore[attr-defined]
    if x.shape[0]:
        _grouped(grad.t(), x, offsets, stacked, ctx.fp8)
    if not ctx.fuse:
        return [torch.empty_like(weight) if x.shape[0] else torch.zeros_like(weight) for weight in weights]
    for weight in weights:
        if hasattr(weight, "grad_added_to_main_grad"):
            weight.grad_added_to_main_grad = True
    return [get_dummy_wgrad(list(weight.shape), weight.dtype) for weight in weights]


def _stack(weights: Any) -> Tensor:
    """The shape of all weights together, for the price only."""
    return torch.empty((len(weights), *weights[0].shape), dtype=weights[0].dtype, device="meta")


def _grouped(left: Tensor, right: Tensor, offsets: Tensor | None, out: Tensor, fp8: bool) -> None:
    like = "aten::_scaled_grouped_mm" if fp8 else "aten::_grouped_mm"
    launch_like(
        like,
        "transformer_engine::grouped_gemm",
        ("self", left),
        ("mat2", right),
        ("offs", offsets),
        ("out", out),
        mutated=("out",),
    )


class GroupedLinear(TransformerEngineBaseModule):
    """transformer_engine.pytorch.GroupedLinear"""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **settings: Any,
    ) -> None:
        super().__init__(
            tp_group, tp_size, sequence_parallel, get_rng_state_tracker, rng_tracker_name=rng_tracker_name, **settings
        )
        self.num_gemms, self.use_bias, self.return_bias = num_gemms, bias, return_bias
        self.parallel_mode, self.fuse_wgrad_accumulation = parallel_mode, fuse_wgrad_accumulation
        self.in_features = in_features // self.tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // self.tp_size if parallel_mode == "column" else out_features
        dtype, dim = params_dtype or torch.get_default_dtype(), {"column": 0, "row": 1}.get(parallel_mode or "")
        for number in range(num_gemms):
            self.new_parameter(
                f"weight{number}",
                (self.out_features, self.in_features),
                init_method or _standard_init,
                dtype,
                device,
                dim,
            )
        for number in range(num_gemms if bias else 0):
            self.new_parameter(
                f"bias{number}", (self.out_features,), torch.nn.init.zeros_, dtype, device, 0 if dim == 0 else None
            )

    def forward(self, inp: Tensor, m_splits: Any, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        splits = m_splits.tolist() if isinstance(m_splits, Tensor) else list(m_splits)
        if sum(splits) != inp.reshape(-1, inp.shape[-1]).shape[0]:
            raise ValueError(
                f"GroupedLinear: the splits {splits} do not add up to the {inp.shape[0]} rows of the input"
            )
        weights = [getattr(self, f"weight{number}") for number in range(self.num_gemms)]
        biases = [getattr(self, f"bias{number}") for number in range(self.num_gemms if self.use_bias else 0)]
        x = inp.reshape(-1, inp.shape[-1]).to(weights[0].dtype)
        applied = [] if self.return_bias else biases
        out = _GroupedLinear.apply(x, splits, self.fuse_wgrad_accumulation, self.num_gemms, *weights, *applied)
        out = out.view(*inp.shape[:-1], self.out_features)
        return (out, biases) if self.return_bias else out
