"""What the modules share: parameters with their marks for tensor parallelism, and products in 16 or 8 bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from phantora.intercept import session
from phantora.intercept.custom_ops import launch_foreign
from phantora.intercept.frameworks.priced_like import launch_like

_FP8 = torch.float8_e4m3fn


def get_dummy_wgrad(shape: list[int], dtype: torch.dtype, zero: bool = False) -> Tensor:
    """What autograd gets as the gradient of a weight whose real one went into main_grad."""
    return (torch.zeros if zero else torch.empty)(shape, dtype=dtype, device="cuda")


class TransformerEngineBaseModule(nn.Module):
    """Base of all modules with weights. tp_size ranks of tp_group share the layer; sequence_parallel: along the
    sequence, too."""

    def __init__(
        self, tp_group: Any, tp_size: int, sequence_parallel: bool, tracker: Callable[[], Any] | None, **settings: Any
    ) -> None:
        super().__init__()
        self.fp8_meta: dict[str, Any] = {"fp8_checkpoint": False, "recipe": None}
        self.fp8 = self.fp8_calibration = False
        self.tp_group = tp_group
        self.tp_size = torch.distributed.get_world_size(tp_group) if tp_group is not None else tp_size
        self.sequence_parallel = sequence_parallel and self.tp_size > 1
        self.get_rng_state_tracker = tracker
        self.rng_tracker_name: str | None = settings.pop("rng_tracker_name", None)
        self.save_original_input = False
        if any(value for name, value in settings.items() if name.startswith("ub_") and name != "ub_name"):
            session.remark(
                "transformer_engine: tp_comm_overlap (userbuffers) is not modelled: products wait for communication"
            )
        if settings.get("delay_wgrad_compute"):
            raise NotImplementedError("transformer_engine (stand-in of phantora): delay_wgrad_compute is not modelled")

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group

    def init_fp8_metadata(self, num_gemms: int = 1) -> None:
        """No scales are kept."""

    def get_extra_state(self) -> Tensor:
        return torch.empty(0, dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Nothing was saved."""

    def new_parameter(
        self,
        name: str,
        shape: tuple[int, ...],
        init: Callable[[Tensor], Any] | None,
        dtype: torch.dtype,
        device: Any,
        partition_dim: int | None,
    ) -> None:
        """partition_dim: the dimension that the tensor parallel ranks share; None: each has all of it."""
        parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
        if parameter.device.type != "meta" and init is not None:
            tracker = self.get_rng_state_tracker() if self.get_rng_state_tracker is not None else None
            forked = (
                nullcontext()
                if tracker is None
                else tracker.fork(*((self.rng_tracker_name,) if self.rng_tracker_name else ()))
            )
            with torch.no_grad(), forked:
                init(parameter)
        parameter.tensor_model_parallel = partition_dim is not None and self.tp_size > 1  # type: ignore[attr-defined]
        parameter.partition_dim = partition_dim if partition_dim is not None else -1  # type: ignore[attr-defined]
        parameter.partition_stride = 1  # type: ignore[attr-defined]
        self.register_parameter(name, parameter)


# ------------------------------------------------------------------ products


def product(left: Tensor, right: Tensor, fp8: bool) -> Tensor:
    """left [m, k] x right [k, n], by cuBLASLt in the operands' dtype or on their FP8 copies."""
    if not fp8:
        return left @ right
    result = left.new_empty((left.shape[0], right.shape[1]))
    scale = torch.empty(1, dtype=torch.float32, device="meta")
    operands = (
        ("self", _in_8_bits(left)),
        ("mat2", _in_8_bits(right)),
        ("scale_a", scale),
        ("scale_b", scale),
        ("out", result),
    )
    launch_like("aten::_scaled_mm", "transformer_engine::fp8_gemm", *operands, mutated=("out",))
    return result


def _in_8_bits(tensor: Tensor) -> Tensor:
    """The shape of its FP8 copy, for the price."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=_FP8, device="meta")


def accumulate_product(left: Tensor, right: Tensor, into: Tensor, fp8: bool) -> None:
    """into (float32) += left x right: one product that reads and writes its result."""
    like = "aten::_scaled_mm" if fp8 else "aten::mm"
    operands = [_in_8_bits(left), _in_8_bits(right)] if fp8 else [left, right]
    launch_like(
        like,
        "transformer_engine::wgrad_gemm",
        ("self", operands[0]),
        ("mat2", operands[1]),
        ("out", into),
        mutated=("out",),
    )


def quantize(tensor: Tensor, fp8: bool) -> Tensor | None:
    """The FP8 copy, and its transpose, which Hopper's products of 8-bit operands need; one kernel makes both. None
    without fp8."""
    if not fp8:
        return None
    both = torch.empty((2, *tensor.shape), dtype=_FP8, device=tensor.device)
    launch_foreign("transformer_engine::cast_transpose", [tensor], [both])
    return both
