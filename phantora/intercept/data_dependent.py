"""Operators whose shapes depend on data: the host waits for a count.

With known contents the answer is real; otherwise `unknown_values` decides, and the read is counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import contents, unknown_values
from phantora.intercept.host_sync import sync_current_stream
from phantora.intercept.launching import launch
from phantora.intercept.checks.supported_dtypes import SCALAR_TYPE_NAMES

native: Any = sys.modules["phantora_native"]
_aten = torch.ops.aten


def new_tensor(like: Tensor, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised contiguous tensor on the device of `like`."""
    return _aten.empty.memory_format(list(shape), dtype=dtype or like.dtype, device=like.device)


def _with_contents(like: Tensor, value: Tensor) -> Tensor:
    result = new_tensor(like, value.shape, value.dtype)
    contents.write(result, value)
    return result


def _launch_and_wait(name: str, tensor: Tensor, *args: tuple[str, Any]) -> None:
    if tensor.numel():
        launch(tensor.get_device(), name, ("self", tensor), *args)
    sync_current_stream(tensor.get_device())


# ------------------------------------------------------------------ shapes that depend on data


def nonzero(self: Tensor) -> Tensor:
    """aten::nonzero: [count, dimensions], with the strides of CUDA's kernel (a transposed tensor)."""
    _launch_and_wait("aten::nonzero", self)
    value = contents.known(self)
    if value is not None:
        found = value.nonzero()
        result = _transposed(self, found.shape[0])
        contents.write(result, found)
        return result
    unknown_values.count("aten::nonzero")
    count = unknown_values.num_selected(self.numel())
    result = _transposed(self, count)
    if count == self.numel() and contents.is_small(result):
        contents.write_stand_in(result, torch.ones(self.shape, dtype=torch.bool, device="cpu").nonzero())
    return result


def _transposed(like: Tensor, count: int) -> Tensor:
    shape = (like.dim(), count)
    return new_tensor(like, shape, torch.int64).t() if like.dim() > 1 else new_tensor(like, shape[::-1], torch.int64)


def nonzero_out(self: Tensor, *, out: Tensor) -> Tensor:
    """aten::nonzero.out"""
    found = nonzero(self)
    out.resize_(found.shape)
    return out.copy_(found)


def masked_select(self: Tensor, mask: Tensor) -> Tensor:
    """aten::masked_select: nonzero of the mask, then a gather."""
    self, mask = torch.broadcast_tensors(self, mask)
    count = _aten.nonzero.default(mask).shape[0]
    result = new_tensor(self, (count,))
    launch(self.get_device(), "aten::masked_select", ("self", self), ("mask", mask), outputs=(result,))
    values, known_mask = contents.known(self), contents.known(mask)
    if values is not None and known_mask is not None:
        contents.write(result, values.masked_select(known_mask))
    return result


def masked_select_out(self: Tensor, mask: Tensor, *, out: Tensor) -> Tensor:
    """aten::masked_select.out"""
    found = masked_select(self, mask)
    out.resize_(found.shape)
    return out.copy_(found)


def unique2(
    self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, ...]:
    """aten::_unique2"""
    _launch_and_wait("aten::_unique2", self)
    value = contents.known(self)
    if value is not None:
        found = _aten._unique2.default(value, sorted, return_inverse, return_counts)
        return tuple(_with_contents(self, part) for part in found)
    unknown_values.count("aten::_unique2")
    return _all_distinct(self, self.numel(), self.shape if return_inverse else (0,), return_counts, (self.numel(),))


def unique_dim(
    self: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, ...]:
    """aten::unique_dim"""
    _launch_and_wait("aten::unique_dim", self)
    value = contents.known(self)
    if value is not None:
        found = _aten.unique_dim.default(value, dim, sorted, return_inverse, return_counts)
        return tuple(_with_contents(self, part) for part in found)
    unknown_values.count("aten::unique_dim")
    length = self.shape[dim]
    return _all_distinct(self, length, (length,) if return_inverse else (0,), return_counts, self.shape)


def unique_consecutive(
    self: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, ...]:
    """aten::unique_consecutive"""
    _launch_and_wait("aten::unique_consecutive", self)
    value = contents.known(self)
    if value is not None:
        found = _aten.unique_consecutive.default(value, return_inverse, return_counts, dim)
        return tuple(_with_contents(self, part) for part in found)
    unknown_values.count("aten::unique_consecutive")
    length = self.numel() if dim is None else self.shape[dim]
    values_shape = (length,) if dim is None else self.shape
    return _all_distinct(self, length, self.shape if return_inverse else (0,), return_counts, values_shape)


def _all_distinct(
    self: Tensor, length: int, inverse_shape: Any, return_counts: bool, values_shape: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        new_tensor(self, values_shape),
        new_tensor(self, inverse_shape, torch.int64),
        new_tensor(self, (length,) if return_counts else (0,), torch.int64),
    )


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """aten::bincount: the length is max + 1, which the host waits for; unknown data counts evenly into `minlength`
    bins."""
    _launch_and_wait("aten::bincount", self, ("weights", weights), ("minlength", minlength))
    value = contents.known(self)
    known_weights = contents.known(weights) if weights is not None else None
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    if value is not None and (weights is None or known_weights is not None):
        return _with_contents(self, torch.bincount(value, known_weights, minlength))
    if value is not None:
        return new_tensor(self, (max(int(value.max()) + 1 if value.numel() else 0, minlength),), dtype)
    unknown_values.count("aten::bincount")
    result = new_tensor(self, (max(minlength, 1),), dtype)
    if weights is None:
        contents.write_stand_in(result, _even_counts(self.numel(), result.numel()))
    return result


def _even_counts(total: int, num_bins: int) -> Tensor:
    counts = torch.full((num_bins,), total // num_bins, dtype=torch.int64, device="cpu")
    counts[: total % num_bins] += 1
    return counts


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """aten::histc: also of integers (the CPU kernel knows floating point only); with min == max the host reads the
    range."""
    if self.dtype in (torch.float16, torch.bfloat16):
        raise NotImplementedError(f"\"histc\" not implemented for '{SCALAR_TYPE_NAMES[self.dtype]}'")
    if min == max:
        sync_current_stream(self.get_device())
    result = new_tensor(self, (bins,))
    launch(self.get_device(), "aten::histc", ("self", self), ("bins", bins), outputs=(result,))
    value = contents.known(self)
    if value is not None:
        contents.write(result, torch.histc(value.double(), bins, min, max).to(self.dtype))
    else:
        unknown_values.count("aten::histc")
        contents.write_stand_in(result, _even_counts(self.numel(), bins))
    return result


def repeat_interleave(repeats: Tensor, output_size: int | None = None) -> Tensor:
    """aten::repeat_interleave.Tensor: without `output_size` the host reads the sum of the repeats."""
    device = repeats.get_device()
    value = contents.known(repeats)
    if output_size is None:
        sync_current_stream(device)
        if value is None:
            unknown_values.count("aten::repeat_interleave")
        output_size = int(value.sum()) if value is not None else repeats.numel()
    result = new_tensor(repeats, (output_size,), repeats.dtype)
    launch(device, "aten::repeat_interleave", ("repeats", repeats), outputs=(result,))
    if value is not None:
        contents.write(result, _aten.repeat_interleave.Tensor(value))
    return result


# ------------------------------------------------------------------ indices


def expand_masks(indices: list[Tensor | None]) -> list[Tensor | None]:
    """Boolean indices become integer ones (nonzero, and a wait), as ATen's expandTensors does."""
    expanded: list[Tensor | None] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            positions = _aten.nonzero.default(index) if index.is_cuda else index.nonzero()
            expanded.extend(positions.unbind(1))
        else:
            expanded.append(index)
    return expanded


def with_expanded_masks(kernel: Callable[..., Any], position: int = 1) -> Callable[..., Any]:
    """`kernel` of index or index_put, after its masks became positions."""

    def call(*args: Any, **kwargs: Any) -> Any:
        indices = args[position]
        if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
            args = (*args[:position], expand_masks(indices), *args[position + 1 :])
        return kernel(*args, **kwargs)

    return call


def with_masked_fill(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` of _index_put_impl_, which fills through a mask without waiting when one number on the CPU is to be put.

    As canDispatchToMaskedFill in ATen/native/TensorAdvancedIndexingUtils.h: one mask, not accumulating.
    """
    put = with_expanded_masks(kernel)

    def index_put(
        self: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
    ) -> Tensor:
        given = [index for index in indices if index is not None]
        is_fill = not accumulate and values.numel() == 1 and not values.is_cuda and len(given) == 1
        leading = next((i for i, index in enumerate(indices) if index is not None), 0)
        is_mask = is_fill and given[0].dtype in (torch.bool, torch.uint8)
        if not is_mask or given[0].shape != self.shape[leading : leading + given[0].dim()]:
            return put(self, indices, values, accumulate, unsafe)
        mask = given[0].view(*given[0].shape, *[1] * (self.dim() - leading - given[0].dim()))
        return self.masked_fill_(mask.to(self.device, torch.bool), values.item())

    return index_put


def with_even_indices(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` of topk, whose indices are spread over the classes (evenly, or as --moe-routing says) when the scores are unknown."""

    def topk(self: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        values, indices = kernel(self, k, dim, largest, sorted)
        policy = unknown_values.policy()
        is_router = policy.balanced_routing and self.dim() > 0 and 0 < k < self.shape[dim] <= policy.most_experts
        if is_router and contents.is_small(indices) and native.shadow(indices) is None:
            unknown_values.count("aten::topk")
            contents.write_stand_in(indices, unknown_values.spread(indices.shape, dim, self.shape[dim]))
        return values, indices

    return topk


# ------------------------------------------------------------------ random integers that scripts use as indices


def with_real_permutation(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` of randperm.generator_out: a real permutation (not CUDA's), drawn from the generator's state."""

    def randperm(n: int, *, generator: torch.Generator | None, out: Tensor) -> Tensor:
        state = generator or native.default_generator(out.get_device())
        seed = (state.initial_seed() + state.get_offset()) % (1 << 63)
        result = kernel(n, generator=generator, out=out)
        if n and contents.is_small(result):
            cpu = torch.Generator(device="cpu").manual_seed(seed)
            contents.write(result, torch.randperm(n, generator=cpu, dtype=result.dtype, device="cpu"))
        return result

    return randperm


def never(*args: Any, **kwargs: Any) -> bool:
    """aten::_use_cudnn_ctc_loss: cuDNN's CTC takes targets on the CPU only, which scripts hardly give; ATen's is
    taken."""
    return False


def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """aten::is_set_to: the same storage in the same way."""
    same_storage = self.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    return same_storage and (self.shape, self.stride(), self.storage_offset()) == (
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
    )
