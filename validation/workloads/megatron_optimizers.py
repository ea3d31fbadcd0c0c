"""fp16 training with loss scaling: Megatron's own optimizer, and DeepSpeed's ZeRO stage 1 over data-parallel ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_BUCKET = 500_000_000  # elements: DeepSpeed's reduce_bucket_size


class MegatronOptimizer:
    """Float16OptimizerWithFloat16Params: fp32 gradients are accumulated beside the fp16 ones; no data parallelism.

    fused: parameters whose gradients their products accumulate (gradient_accumulation_fusion).
    """

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], norm_group: Any, fused: Iterable[torch.nn.Parameter] = ()
    ) -> None:
        self.parameters, self.norm_group = list(parameters), norm_group
        self.masters = [p.detach().float().requires_grad_() for p in self.parameters]
        self.main_grads = [torch.zeros_like(m) for m in self.masters]
        self.adam = torch.optim.Adam(self.masters, lr=1e-4, fused=True)
        accumulated = {id(parameter) for parameter in fused}
        for parameter, main_grad in zip(self.parameters, self.main_grads):
            if id(parameter) in accumulated:
                parameter.main_grad = main_grad  # type: ignore[attr-defined]
            else:
                parameter.register_post_accumulate_grad_hook(_accumulate_into(main_grad))

    def zero_grad(self) -> None:
        torch._foreach_zero_(self.main_grads)

    def step(self) -> None:
        found_inf, scale = (torch.full((1,), value, dtype=torch.float32, device="cuda") for value in (0.0, 1.0))
        torch._amp_foreach_non_finite_check_and_unscale_(self.main_grads, found_inf, scale)
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=self.norm_group)
        found_inf.item()
        clip(self.main_grads, self.norm_group)
        for master, main_grad in zip(self.masters, self.main_grads):
            master.grad = main_grad
        self.adam.step()
        torch._foreach_copy_([p.data for p in self.parameters], [m.data for m in self.masters])


class ZeroOneOptimizer:
    """Gradients are reduced in fp16 after the last microbatch; each rank updates its part of the fp32 weights."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], group: Any, norm_group: Any) -> None:
        self.parameters, self.group, self.norm_group = list(parameters), group, norm_group
        self.num_ranks = dist.get_world_size(group)
        total = sum(p.numel() for p in self.parameters)
        self.part = -(-total // self.num_ranks)
        self.flat = torch.empty(self.part * self.num_ranks, dtype=torch.float16, device="cuda")
        at = 0
        for parameter in self.parameters:
            parameter.data = self.flat[at : at + parameter.numel()].view(parameter.shape)
            at += parameter.numel()
        self.master = self.flat[: self.part].float().requires_grad_()
        self.adam = torch.optim.Adam([self.master], lr=1e-4, fused=True)

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        grad = self._reduced().float()
        found_inf = (~torch.isfinite(grad.sum())).float()
        dist.all_reduce(found_inf, op=dist.ReduceOp.MAX, group=self.norm_group)
        found_inf.item()
        clip([grad], self.norm_group)
        self.master.grad = grad
        self.adam.step()
        rank = dist.get_rank(self.group)
        mine = self.flat[rank * self.part : (rank + 1) * self.part]
        mine.copy_(self.master.data)
        dist.all_gather_into_tensor(self.flat, mine, group=self.group)

    def _reduced(self) -> Tensor:
        """This rank's part of the mean gradients, bucket by bucket."""
        mine, bucket = torch.empty(self.part, dtype=torch.float16, device="cuda"), 0
        waiting: list[Tensor] = []
        filled = 0
        for parameter in self.parameters:
            waiting.append(parameter.grad.flatten())
            bucket += parameter.numel()
            if bucket >= _BUCKET or parameter is self.parameters[-1]:
                filled += self._reduce_bucket(waiting, mine[filled:])
                waiting, bucket = [], 0
        return mine

    def _reduce_bucket(self, grads: list[Tensor], mine: Tensor) -> int:
        flat = torch.cat(grads)
        flat.div_(self.num_ranks)
        share = min(flat.numel() // self.num_ranks, mine.numel())
        dist.reduce_scatter_tensor(mine[:share], flat[: share * self.num_ranks], group=self.group)
        return share


def _accumulate_into(main_grad: Tensor) -> Any:
    """Megatron's gradient hook: add the fp16 gradient to the fp32 one, drop it."""

    def hook(parameter: Tensor) -> None:
        main_grad.add_(parameter.grad)
        parameter.grad = None

    return hook


def clip(grads: list[Tensor], group: Any) -> None:
    """To a norm of 1 over `group`: one multi-tensor norm, one multi-tensor scaling."""
    squared = torch.stack(torch._foreach_norm(grads)).square().sum()
    dist.all_reduce(squared, group=group)
    factor = 1.0 / (squared.sqrt().item() + 1e-6)
    torch._foreach_mul_(grads, min(factor, 1.0))
