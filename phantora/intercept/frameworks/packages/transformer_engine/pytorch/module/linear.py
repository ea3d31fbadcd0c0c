"""Linear layers, alone or after a norm, with the communication of tensor and sequence parallelism (Korthikanti et al.,
2022).

| layer      | forward                         | backward                                                 |
|------------|---------------------------------|----------------------------------------------------------|
| column     | product                         | the input's gradient all-reduced beside the other product |
| column, SP | input gathered, product         | input gathered again, its gradient reduce-scattered      |
| row        | product, result all-reduced     | two products                                             |
| row, SP    | product, result reduce-scattered | the output's gradient gathered, two products             |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transformer_engine.pytorch.distributed import allreduce, gather_along_first_dim, reduce_scatter_along_first_dim
from transformer_engine.pytorch.fp8 import FP8GlobalStateManager
from transformer_engine.pytorch.module.base import (
    TransformerEngineBaseModule,
    accumulate_product,
    get_dummy_wgrad,
    product,
    quantize,
)
from transformer_engine.pytorch.module.norms import normalize


class _Linear(torch.autograd.Function):
    """x [s, b, k] (any leading dimensions) and weight [n, k]."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        mode: str | None,
        group: Any,
        sequence: bool,
        fuse: bool,
    ) -> Tensor:
        ctx.fp8 = FP8GlobalStateManager.is_fp8_enabled()
        ctx.is_first = ctx.fp8 and FP8GlobalStateManager.register(2, 1)
        ctx.mode, ctx.group, ctx.sequence, ctx.fuse = mode, group, sequence, fuse
        ctx.has_bias, ctx.fp8_group = bias is not None, FP8GlobalStateManager.get_fp8_group()
        quantize(x, ctx.fp8)
        quantize(weight, ctx.fp8)
        gathered = gather_along_first_dim(x, group)[0] if mode == "column" and sequence else x
        ctx.save_for_backward(x, weight)
        out = product(gathered.reshape(-1, gathered.shape[-1]), weight.t(), ctx.fp8)
        if bias is not None:
            out = out.add_(bias) if ctx.fp8 else out + bias
        out = out.view(*gathered.shape[:-1], weight.shape[0])
        if mode == "row":
            out = reduce_scatter_along_first_dim(out, group)[0] if sequence else allreduce(out, group)[0]
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        waiting = None
        if ctx.mode == "row" and ctx.sequence:
            grad = gather_along_first_dim(grad, ctx.group)[0]
        elif ctx.mode == "column" and ctx.sequence:
            x, waiting = gather_along_first_dim(x, ctx.group, async_op=True)
        quantize(grad, ctx.fp8)
        grad_2d = grad.reshape(-1, grad.shape[-1])
        grad_x = (
            product(grad_2d, weight, ctx.fp8).view(*grad.shape[:-1], weight.shape[1])
            if ctx.needs_input_grad[0]
            else None
        )
        if waiting is not None:
            waiting.wait()
            waiting = None
        if ctx.mode == "column" and grad_x is not None:
            reduce = reduce_scatter_along_first_dim if ctx.sequence else allreduce
            grad_x, waiting = reduce(grad_x, ctx.group, async_op=True)
        grad_weight = (
            weight_gradient(weight, grad_2d, x.reshape(-1, x.shape[-1]), ctx.fuse, ctx.fp8)
            if ctx.needs_input_grad[1]
            else None
        )
        grad_bias = grad_2d.sum(0) if ctx.has_bias and ctx.needs_input_grad[2] else None
        if waiting is not None:
            waiting.wait()
        if ctx.is_first and FP8GlobalStateManager.get_fp8_recipe().delayed():
            FP8GlobalStateManager.reduce_largest(FP8GlobalStateManager.num_backward_tensors, ctx.fp8_group)
        return grad_x, grad_weight, grad_bias, None, None, None, None


def weight_gradient(weight: Tensor, grad: Tensor, x: Tensor, fuse: bool, fp8: bool) -> Tensor:
    """grad.T x: returned, or added to weight.main_grad (fuse)."""
    if not fuse:
        return product(grad.t(), x, fp8)
    accumulate_product(grad.t(), x, weight.main_grad, fp8)  # type: ignore[attr-defined]
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True
    return get_dummy_wgrad(list(weight.shape), weight.dtype, getattr(weight, "zero_out_wgrad", False))


class Linear(TransformerEngineBaseModule):
    """transformer_engine.pytorch.Linear"""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: Any = "cuda",
        **settings: Any,
    ) -> None:
        super().__init__(tp_group, tp_size, sequence_parallel, get_rng_state_tracker, **settings)
        self.parallel_mode, self.fuse_wgrad_accumulation = parallel_mode, fuse_wgrad_accumulation
        self.in_features = in_features // self.tp_size if parallel_mode == "row" else in_features
        self.out_features = out_features // self.tp_size if parallel_mode == "column" else out_features
        self.use_bias, self.return_bias, self.apply_bias = bias, return_bias, bias and not return_bias
        dtype = params_dtype or torch.get_default_dtype()
        dim = {"column": 0, "row": 1}.get(parallel_mode or "")
        self.new_parameter(
            "weight", (self.out_features, self.in_features), init_method or _standard_init, dtype, device, dim
        )
        if bias:
            self.new_parameter(
                "bias",
                (self.out_features,),
                torch.nn.init.zeros_,
                dtype,
                device,
                0 if parallel_mode == "column" else None,
            )
            if parallel_mode == "row":
                self.bias.sequence_parallel = self.sequence_parallel  # type: ignore[union-attr]

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        return self.apply_linear(inp)

    def apply_linear(self, x: Tensor) -> Any:
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        bias = self.bias if self.use_bias else None
        # After a reduction, once: then every rank of the group would add its own.
        late = self.apply_bias and self.parallel_mode == "row" and self.tp_size > 1
        args = (x.to(dtype), self.weight.to(dtype), bias if self.apply_bias and not late else None)
        out = _Linear.apply(
            *args, self.parallel_mode, self.tp_group, self.sequence_parallel, self.fuse_wgrad_accumulation
        )
        if late:
            out = out + bias
        return (out, bias if bias is not None else torch.empty(0, device=out.device)) if self.return_bias else out


def _standard_init(weight: Tensor) -> None:
    torch.nn.init.normal_(weight, mean=0.0, std=0.023)


class LayerNormLinear(Linear):
    """transformer_engine.pytorch.LayerNormLinear"""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        normalization: str = "LayerNorm",
        zero_centered_gamma: bool = False,
        return_layernorm_output: bool = False,
        params_dtype: torch.dtype | None = None,
        device: Any = "cuda",
        **settings: Any,
    ) -> None:
        settings.pop("return_layernorm_output_gathered", None)
        super().__init__(in_features, out_features, params_dtype=params_dtype, device=device, **settings)
        self.eps, self.normalization, self.zero_centered_gamma = eps, normalization, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        add_norm(self, in_features, params_dtype or torch.get_default_dtype(), device)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        normed = normalize(self.normalization, inp, self.layer_norm_weight, self.layer_norm_bias, self.eps)
        out = self.apply_linear(normed)
        if self.return_layernorm_output:
            return (*out, normed) if isinstance(out, tuple) else (out, normed)
        return out


def add_norm(module: Any, width: int, dtype: torch.dtype, device: Any) -> None:
    """The parameters layer_norm_weight and layer_norm_bias of a module that begins with a norm."""
    gamma = torch.nn.init.zeros_ if module.zero_centered_gamma else torch.nn.init.ones_
    module.new_parameter("layer_norm_weight", (width,), gamma, dtype, device, None)
    module.layer_norm_weight.sequence_parallel = module.sequence_parallel
    if module.normalization == "LayerNorm":
        module.new_parameter("layer_norm_bias", (width,), torch.nn.init.zeros_, dtype, device, None)
        module.layer_norm_bias.sequence_parallel = module.sequence_parallel
    else:
        module.layer_norm_bias = None


_GATED = {"swiglu": F.silu, "geglu": F.gelu, "reglu": F.relu}
_PLAIN = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


class LayerNormMLP(TransformerEngineBaseModule):
    """transformer_engine.pytorch.LayerNormMLP: norm, column parallel fc1, activation, row parallel fc2."""

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Callable[[Tensor], Any] | None = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        zero_centered_gamma: bool = False,
        set_parallel_mode: bool = False,
        device: Any = "cuda",
        **settings: Any,
    ) -> None:
        super().__init__(tp_group, tp_size, sequence_parallel, get_rng_state_tracker, **settings)
        if activation not in (*_GATED, *_PLAIN):
            raise NotImplementedError(
                f"activation {activation!r} is not modelled (there are: {', '.join((*_GATED, *_PLAIN))})"
            )
        self.eps, self.normalization, self.zero_centered_gamma, self.activation = (
            eps,
            normalization,
            zero_centered_gamma,
            activation,
        )
        self.modes = ("column", "row") if set_parallel_mode else (None, None)
        self.use_bias, self.return_bias, self.fuse = bias, return_bias, fuse_wgrad_accumulation
        dtype, inner = (
            params_dtype or torch.get_default_dtype(),
            ffn_hidden_size // (self.tp_size if set_parallel_mode else 1),
        )
        wide = inner * (2 if activation in _GATED else 1)
        add_norm(self, hidden_size, dtype, device)
        self.new_parameter("fc1_weight", (wide, hidden_size), init_method or _standard_init, dtype, device, 0)
        self.new_parameter(
            "fc2_weight",
            (hidden_size, inner),
            output_layer_init_method or init_method or _standard_init,
            dtype,
            device,
            1,
        )
        if bias:
            self.new_parameter("fc1_bias", (wide,), torch.nn.init.zeros_, dtype, device, 0)
            self.new_parameter("fc2_bias", (hidden_size,), torch.nn.init.zeros_, dtype, device, None)

    def forward(self, inp: Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        normed = normalize(self.normalization, inp, self.layer_norm_weight, self.layer_norm_bias, self.eps)
        bias = (self.fc1_bias, self.fc2_bias) if self.use_bias else (None, None)
        shared = (self.tp_group, self.sequence_parallel, self.fuse)
        hidden = _Linear.apply(normed, self.fc1_weight, bias[0], self.modes[0], *shared)
        if self.activation in _GATED:
            gate, up = hidden.chunk(2, dim=-1)
            hidden = _GATED[self.activation](gate) * up
        else:
            hidden = _PLAIN[self.activation](hidden)
        out = _Linear.apply(hidden, self.fc2_weight, None, self.modes[1], *shared)
        if self.return_bias:
            return out, bias[1]
        return out if bias[1] is None else out + bias[1]
