"""DeepSpeed's compiled operators: its builders would run nvcc and g++ for a minute; here `load()` gives these.

GPU kernels are launched and priced as torch's operators that do the same. Optimizers on the CPU take host time and
compute nothing: their gradients are not known. Operators that are not here cannot be loaded, and the error says which.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import session
from phantora.intercept.frameworks.deepspeed_quantizer import Quantizer
from phantora.intercept.frameworks.priced_like import launch_like

native: Any = sys.modules["phantora_native"]

# Ren et al., ZeRO-Offload (USENIX ATC 2021), table 4: CPU-Adam updates 10 billion parameters in 2.57 s on the two Xeons
# 8168 of a DGX-2. An update of float32 reads parameter, gradient and two moments and writes three of them: 28 bytes, so
# 109 GB/s for the node.
_NODE_BYTES_PER_S = 109e9


class FusedAdam:
    """deepspeed.ops.adam.fused_adam_op"""

    @staticmethod
    def multi_tensor_adam(chunk_size: int, noop: Tensor, lists: Sequence[Sequence[Tensor]], *settings: Any) -> None:
        grads, params, averages, squares = lists
        launch_like(
            "aten::_fused_adamw_",
            "deepspeed::multi_tensor_adam",
            ("self", params),
            ("grads", grads),
            ("exp_avgs", averages),
            ("exp_avg_sqs", squares),
            mutated=("self", "exp_avgs", "exp_avg_sqs"),
        )


class FusedLion:
    """deepspeed.ops.lion.fused_lion_op"""

    @staticmethod
    def multi_tensor_lion(chunk_size: int, noop: Tensor, lists: Sequence[Sequence[Tensor]], *settings: Any) -> None:
        grads, params, averages = lists
        launch_like(
            "aten::_fused_sgd_",
            "deepspeed::multi_tensor_lion",
            ("self", params),
            ("grads", grads),
            ("momentum_buffer_list", averages),
            mutated=("self", "momentum_buffer_list"),
        )


class FusedLamb:
    """deepspeed.ops.lamb.fused_lamb_op"""

    @staticmethod
    def lamb(param: Tensor, copy: Tensor, average: Tensor, square: Tensor, grad: Tensor, *settings: Any) -> Tensor:
        """Three kernels: the update with partial norms, their reduction, the scaled step. Returns the coefficient."""
        launch_like(
            "aten::_fused_adamw_",
            "deepspeed::lamb",
            ("self", [param]),
            ("grads", [grad]),
            ("exp_avgs", [average]),
            ("exp_avg_sqs", [square]),
            mutated=("self", "exp_avgs", "exp_avg_sqs"),
        )
        coefficient = torch.linalg.vector_norm(param.float())
        param.add_(param, alpha=0.0)
        return coefficient.reshape(1)


class CPUOptimizer:
    """deepspeed.ops.adam.cpu_adam_op and its like: a pass over host memory that all ranks of a node share."""

    @staticmethod
    def create_adam(*_: Any) -> int:
        return 0

    create_adagrad = create_lion = destroy_adam = destroy_adagrad = destroy_lion = create_adam

    @staticmethod
    def adam_update(*arguments: Any) -> int:
        _pass_over_host_memory("CPU optimizer of DeepSpeed", [a for a in arguments if isinstance(a, Tensor)])
        return 0

    adam_rollback = lion_update = adagrad_update = adam_update


def _pass_over_host_memory(what: str, tensors: list[Tensor]) -> None:
    """All are read; all but the second (the gradient) are written."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    moved_bytes = 2 * sum(sizes) - sizes[1]
    sharers = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    native.advance_ns(round(moved_bytes * sharers * 1e9 / _NODE_BYTES_PER_S))
    session.remark(
        f"{what}: its time is a guess, 28 bytes per parameter at 109 GB/s for a node (ZeRO-Offload, table 4)"
    )


_OPERATORS: dict[str, Any] = {
    "fused_adam": FusedAdam,
    "fused_lamb": FusedLamb,
    "fused_lion": FusedLion,
    "cpu_adam": CPUOptimizer,
    "cpu_adagrad": CPUOptimizer,
    "cpu_lion": CPUOptimizer,
    "quantizer": Quantizer,
}


def after(builder: ModuleType) -> None:
    """`builder` is deepspeed.ops.op_builder.builder."""

    def load(self: Any, verbose: bool = False) -> Any:
        operator = _OPERATORS.get(self.name)
        if operator is None:
            raise RuntimeError(
                f"DeepSpeed's operator {self.name} is not simulated (there are: {', '.join(sorted(_OPERATORS))})"
            )
        return operator

    builder.OpBuilder.load = load
    builder.OpBuilder.is_compatible = lambda self, verbose=False: self.name in _OPERATORS
