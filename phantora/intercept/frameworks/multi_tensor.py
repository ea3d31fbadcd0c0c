"""Kernels over lists of tensors, as apex's amp_C and Transformer Engine have them (multi_tensor_apply)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.frameworks.priced_like import launch_like

Lists = Sequence[Sequence[Tensor]]


class MultiTensorApply:
    """`applier(kernel, overflow, lists, *arguments)`"""

    available = True

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size

    def __call__(self, kernel: Callable[..., Any], overflow: Tensor, lists: Lists, *arguments: Any) -> Any:
        return kernel(self.chunk_size, overflow, lists, *arguments)


multi_tensor_applier = MultiTensorApply(2048 * 32)


def multi_tensor_l2norm(
    chunk_size: int, overflow: Tensor, lists: Lists, per_tensor: bool = False, *_: Any
) -> tuple[Tensor, Tensor]:
    """(norm of everything [1], norms of each tensor, empty unless asked for), float32, of unknown contents."""
    (tensors,) = lists
    device = tensors[0].device if tensors else torch.device("cuda", torch.cuda.current_device())
    total = torch.empty(1, dtype=torch.float32, device=device)
    each = torch.empty(len(tensors) if per_tensor else 0, dtype=torch.float32, device=device)
    if tensors:
        launch_like("aten::_foreach_norm", "multi_tensor::l2norm", ("self", tensors), outputs=(total, each))
    return total, each


def multi_tensor_scale(chunk_size: int, overflow: Tensor, lists: Lists, scale: Any) -> None:
    sources, targets = lists
    launch_like(
        "aten::_foreach_mul_", "multi_tensor::scale", ("self", targets), ("tensors", sources), mutated=("self",)
    )


def multi_tensor_axpby(chunk_size: int, overflow: Tensor, lists: Lists, *_: Any) -> None:
    first, second, targets = lists
    launch_like(
        "aten::_foreach_add_", "multi_tensor::axpby",
        ("self", targets), ("tensor1", first), ("tensor2", second), mutated=("self",),
    )  # fmt: skip


def multi_tensor_adam(chunk_size: int, overflow: Tensor, lists: Lists, *_: Any) -> None:
    """Gradients, parameters, two moments, and master weights where there are any."""
    grads, params, averages, squares, *masters = lists
    more = (("masters", masters[0]),) if masters else ()
    launch_like(
        "aten::_fused_adamw_", "multi_tensor::adam",
        ("self", params), ("grads", grads), ("exp_avgs", averages), ("exp_avg_sqs", squares), *more,
        mutated=("self", "exp_avgs", "exp_avg_sqs", "masters"),
    )  # fmt: skip


def multi_tensor_sgd(chunk_size: int, overflow: Tensor, lists: Lists, *_: Any) -> None:
    grads, params, momenta, *copies = lists
    launch_like(
        "aten::_fused_sgd_", "multi_tensor::sgd",
        ("self", params), ("grads", grads), ("momentum_buffer_list", momenta), mutated=("self", "momentum_buffer_list"),
    )  # fmt: skip


class FusedAdam(torch.optim.Optimizer):
    """Adam whose step is one multi_tensor_apply for each dtype; state as apex and Transformer Engine keep it."""

    def __init__(
        self, params: Any, lr: float = 1e-3, bias_correction: bool = True, betas: Any = (0.9, 0.999), eps: float = 1e-8,
        adam_w_mode: bool = True, weight_decay: float = 0.0, amsgrad: bool = False, set_grad_none: bool = True,
        capturable: bool = False, master_weights: Any = False, use_decoupled_grad: bool = False,
        master_weight_dtype: torch.dtype = torch.float32, exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32, store_param_remainders: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        if amsgrad:
            raise RuntimeError("FusedAdam does not support the AMSGrad variant.")
        super().__init__(
            params,
            {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay},
        )
        self.adam_w_mode, self.set_grad_none, self.capturable = int(adam_w_mode), set_grad_none, capturable
        self.master_weights, self.use_decoupled_grad = bool(master_weights), use_decoupled_grad
        self.master_dtype = torch.int16 if store_param_remainders else master_weight_dtype
        self.exp_avg_dtype, self.exp_avg_sq_dtype = exp_avg_dtype, exp_avg_sq_dtype

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)

    def step(self, closure: Callable[[], Any] | None = None, *_: Any, **__: Any) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            if group["params"]:
                group["step"] = group.get("step", 0) + 1
                self._update(group["params"])
        return loss

    def _update(self, params: list[Tensor]) -> None:
        by_dtype: dict[torch.dtype, list[list[Tensor]]] = {}
        for param in params:
            grad = param.decoupled_grad if self.use_decoupled_grad else param.grad
            if grad is not None:
                row = [grad, param, *self._state_of(param)]
                columns = by_dtype.setdefault(param.dtype, [[] for _ in row])
                for column, tensor in zip(columns, row):
                    column.append(tensor.detach())
        for lists in by_dtype.values():
            multi_tensor_applier(multi_tensor_adam, None, lists)  # type: ignore[arg-type]

    def _state_of(self, param: Tensor) -> list[Tensor]:
        if not self.state[param]:
            self.initialize_state(param)
        state = self.state[param]
        names = ("exp_avg", "exp_avg_sq", *(("master_param",) if "master_param" in state else ()))
        return [state[name] for name in names]

    def initialize_state(self, param: Tensor, store_param_remainders: bool = False) -> None:
        state = self.state[param]
        state["exp_avg"] = torch.zeros_like(param, dtype=self.exp_avg_dtype)
        state["exp_avg_sq"] = torch.zeros_like(param, dtype=self.exp_avg_sq_dtype)
        if self.master_weights and param.dtype != torch.float32:
            state["master_param"] = torch.zeros_like(param, dtype=self.master_dtype)


class FusedSGD(torch.optim.Optimizer):
    """SGD with momentum whose step is one multi_tensor_apply for each dtype."""

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
        nesterov: bool = False, **_: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": momentum,
                "dampening": dampening,
                "weight_decay": weight_decay,
                "nesterov": nesterov,
            },
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            by_dtype: dict[torch.dtype, list[list[Tensor]]] = {}
            for param in group["params"]:
                if param.grad is not None:
                    momentum = self.state[param].setdefault("momentum_buffer", torch.zeros_like(param))
                    for column, tensor in zip(
                        by_dtype.setdefault(param.dtype, [[], [], []]), (param.grad, param.detach(), momentum)
                    ):
                        column.append(tensor)
            for lists in by_dtype.values():
                multi_tensor_applier(multi_tensor_sgd, None, lists)  # type: ignore[arg-type]
        return loss
