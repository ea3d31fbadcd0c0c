"""Sparse COO tensors on the simulated GPU: gradients of sparse embeddings, and what optimizers do with them.

torch's SparseTensorImpl is made and read by functions that do not care about the device, so those of the CPU serve here
as they are. Arithmetic is done on indices and values (dense tensors of the simulated GPU), as the CUDA kernels do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

from phantora.intercept import contents, unknown_values
from phantora.intercept.host_sync import sync_current_stream
from phantora.intercept.launching import launch

_aten = torch.ops.aten
_CPU_KEYS = DispatchKeySet(DispatchKey.SparseCPU)

# Registered for SparseCPU and SparseCUDA alike in native_functions.yaml, with the same function.
_DEVICE_INDEPENDENT = """_sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors sparse_resize_
    sparse_resize_and_clear_ sparse_dim _dimI dense_dim _dimV _nnz is_coalesced _indices _values _coalesced_ indices
    values copy_sparse_to_sparse_ clone unsqueeze empty.memory_format empty_like resize_as_sparse_""".split()


def install(libraries: list[Any]) -> None:
    """Register the kernels at the SparseCUDA key."""
    library = torch.library.Library("aten", "IMPL")
    for name in _DEVICE_INDEPENDENT:
        library.impl(name, _on_cpu_keys(_overload(name)), "SparseCUDA")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "SparseCUDA")
    for name in _VALUEWISE:
        library.impl(name, _valuewise(_overload(name)), "SparseCUDA")
        library.impl(f"{name}_", _valuewise_in_place(_overload(f"{name}_")), "SparseCUDA")
    libraries.append(library)


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(_aten, base), overload or "default")


def _on_cpu_keys(op: Any) -> Callable[..., Any]:
    redispatch = op.redispatch

    def call(*args: Any, **kwargs: Any) -> Any:
        return redispatch(_CPU_KEYS, *args, **kwargs)

    return call


def _like(sparse: Tensor, indices: Tensor, values: Tensor, is_coalesced: bool) -> Tensor:
    shape = (*sparse.shape[: sparse.sparse_dim()], *values.shape[1:])
    return _aten._sparse_coo_tensor_with_dims_and_tensors.default(
        sparse.sparse_dim(), values.dim() - 1, list(shape), indices, values, dtype=values.dtype,
        layout=torch.sparse_coo, device=values.device, is_coalesced=is_coalesced,
    )  # fmt: skip


def _parts(sparse: Tensor) -> tuple[Tensor, Tensor]:
    return sparse._indices(), sparse._values()


# ------------------------------------------------------------------ coalescing


def coalesce(self: Tensor) -> Tensor:
    """aten::_coalesce: sort the indices, sum duplicates; the host waits for their number (all distinct when
    unknown)."""
    if self.is_coalesced():
        return self
    indices, values = _parts(self)
    device = values.get_device()
    launch(device, "aten::_coalesce", ("indices", indices), ("values", values))
    sync_current_stream(device)
    known = contents.known(indices)
    if known is None:
        unknown_values.count("aten::_coalesce")
        return _like(self, indices.clone(), values.clone(), is_coalesced=True)
    distinct = torch.unique(known, dim=1)
    new_indices = torch.empty(distinct.shape, dtype=indices.dtype, device=indices.device)
    contents.write(new_indices, distinct)
    return _like(self, new_indices, values.new_empty((distinct.shape[1], *values.shape[1:])), is_coalesced=True)


# ------------------------------------------------------------------ arithmetic


def add(self: Tensor, other: Tensor, *, alpha: float | int = 1) -> Tensor:
    """aten::add.Tensor: sparse + sparse concatenates, dense + sparse scatters."""
    if not self.is_sparse:
        return _scatter_into(self.clone(), other)
    if not other.is_sparse:
        return _scatter_into(other.clone(), self)
    indices = torch.cat([self._indices(), other._indices()], 1)
    return _like(self, indices, torch.cat([self._values(), other._values()]), is_coalesced=False)


def add_(self: Tensor, other: Tensor, *, alpha: float | int = 1) -> Tensor:
    """aten::add_.Tensor"""
    if not self.is_sparse:
        return _scatter_into(self, other)
    return _become(self, add(self, other, alpha=alpha))


def sub(self: Tensor, other: Tensor, *, alpha: float | int = 1) -> Tensor:
    """aten::sub.Tensor"""
    return add(self, other)


def sub_(self: Tensor, other: Tensor, *, alpha: float | int = 1) -> Tensor:
    """aten::sub_.Tensor"""
    return add_(self, other)


def _scatter_into(dense: Tensor, sparse: Tensor) -> Tensor:
    indices, values = _parts(sparse)
    launch(
        dense.get_device(), "aten::add_", ("self", dense), ("indices", indices), ("values", values), mutated=("self",)
    )
    contents.forget(dense)
    return dense


def _become(self: Tensor, result: Tensor) -> Tensor:
    return _aten.copy_sparse_to_sparse_.default(self, result, False)


def mul(self: Tensor, other: Tensor) -> Tensor:
    """aten::mul.Tensor, by a number or elementwise with equal indices."""
    if not isinstance(other, Tensor):
        other = torch.tensor(other, device="cpu")
    sparse, factor = (self, other) if self.is_sparse else (other, self)
    indices, values = _parts(sparse)
    if factor.is_sparse:
        scale = factor._values()
    else:
        scale = factor.reshape(()) if factor.numel() == 1 else factor.expand(sparse.shape)[tuple(indices)]
    return _like(sparse, indices, values * scale, sparse.is_coalesced())


def mul_(self: Tensor, other: Tensor) -> Tensor:
    """aten::mul_.Tensor"""
    return _become(self, mul(self, other))


def div(self: Tensor, other: Tensor) -> Tensor:
    """aten::div.Tensor"""
    indices, values = _parts(self)
    return _like(self, indices, values / other, self.is_coalesced())


def div_(self: Tensor, other: Tensor) -> Tensor:
    """aten::div_.Tensor"""
    return _become(self, div(self, other))


def power(self: Tensor, exponent: float | int) -> Tensor:
    """aten::pow.Tensor_Scalar"""
    indices, values = _parts(self)
    return _like(self, indices, values**exponent, self.is_coalesced())


def _valuewise(op: Any) -> Callable[..., Tensor]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        indices, values = _parts(self)
        return _like(self, indices, op(values, *args, **kwargs), self.is_coalesced())

    return call


def _valuewise_in_place(op: Any) -> Callable[..., Tensor]:
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        op(self._values(), *args, **kwargs)
        return self

    return call


_VALUEWISE = ("neg", "abs", "sqrt", "sign", "sin", "tanh", "ceil", "floor", "round", "trunc", "relu", "expm1", "log1p")


# ------------------------------------------------------------------ conversions, reductions, products


def copy_(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    """aten::copy_ between sparse tensors, also to and from the CPU."""
    if not (self.is_sparse and src.is_sparse):
        raise RuntimeError("copy_() between dense and sparse Tensors is not implemented!")
    indices = src._indices().to(self.device, non_blocking=non_blocking)
    values = src._values().to(self.device, self.dtype, non_blocking=non_blocking)
    moved = _aten._sparse_coo_tensor_with_dims_and_tensors.default(
        src.sparse_dim(), src.dense_dim(), list(src.shape), indices, values, dtype=self.dtype, layout=torch.sparse_coo,
        device=self.device, is_coalesced=src.is_coalesced(),
    )  # fmt: skip
    return _aten.copy_sparse_to_sparse_.default(self, moved, False)


def zero_(self: Tensor) -> Tensor:
    """aten::zero_"""
    return _aten.sparse_resize_and_clear_.default(self, list(self.shape), self.sparse_dim(), self.dense_dim())


def to_dense(self: Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None) -> Tensor:
    """aten::_to_dense"""
    dense = torch.zeros(self.shape, dtype=dtype or self.dtype, device=self.device)
    return _scatter_into(dense, self)


def to_sparse(self: Tensor, sparse_dim: int) -> Tensor:
    """aten::_to_sparse.sparse_dim: the nonzero rows, whose number the host reads."""
    keep = self if sparse_dim == self.dim() else self.flatten(sparse_dim).ne(0).any(-1)
    indices = keep.nonzero().t().contiguous()
    values = self[tuple(indices)]
    return _aten._sparse_coo_tensor_with_dims_and_tensors.default(
        sparse_dim, self.dim() - sparse_dim, list(self.shape), indices, values, dtype=self.dtype,
        layout=torch.sparse_coo, device=self.device, is_coalesced=True,
    )  # fmt: skip


def to_sparse_default(
    self: Tensor,
    *,
    layout: torch.layout | None = None,
    blocksize: list[int] | None = None,
    dense_dim: int | None = None,
) -> Tensor:
    """aten::_to_sparse, to COO only."""
    if layout not in (None, torch.sparse_coo):
        raise NotImplementedError(f"to_sparse({layout}) is not simulated on the GPU: only sparse_coo is")
    return to_sparse(self, self.dim() - (dense_dim or 0))


def sparse_mask(self: Tensor, mask: Tensor) -> Tensor:
    """aten::sparse_mask: the entries of a dense tensor at the indices of `mask`."""
    indices = mask._indices()
    values = self[tuple(indices)]
    return _like(mask, indices, values, mask.is_coalesced())


def total(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    """aten::sum"""
    return self._values().sum(dtype=dtype)


def native_norm(self: Tensor, p: float | int = 2) -> Tensor:
    """aten::native_norm"""
    return torch.linalg.vector_norm(self.coalesce()._values(), p)


def norm_along(
    self: Tensor, p: Any, dim: list[int], keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """aten::norm.ScalarOpt_dim, norm.ScalarOpt_dim_dtype: of all values or not at all, as torch's own."""
    if dim and len(dim) != self.dim():
        raise RuntimeError("norm_sparse currently only supports full reductions, so 'dim' must be empty or all dims")
    norm = torch.linalg.vector_norm(self.coalesce()._values(), 2 if p is None else p, dtype=dtype)
    return norm.reshape((1,) * self.dim()) if keepdim else norm


def mm(self: Tensor, mat2: Tensor) -> Tensor:
    """aten::mm: sparse x dense."""
    return addmm(None, self, mat2)


def addmm(self: Tensor | None, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """aten::addmm: dense + sparse x dense."""
    result = torch.empty((mat1.shape[0], mat2.shape[1]), dtype=mat2.dtype, device=mat2.device)
    indices, values = _parts(mat1)
    args = (("self", self), ("indices", indices), ("values", values), ("mat2", mat2))
    launch(result.get_device(), "aten::_sparse_mm", *args, outputs=(result,))
    return result


def index_select(self: Tensor, dim: int, index: Tensor) -> Tensor:
    """aten::index_select: of a sparse dimension; every entry may be selected."""
    indices, values = _parts(self)
    shape = list(self.shape)
    shape[dim] = index.numel()
    return _aten._sparse_coo_tensor_with_dims_and_tensors.default(
        self.sparse_dim(), self.dense_dim(), shape, indices.clone(), values.clone(), dtype=self.dtype,
        layout=torch.sparse_coo, device=self.device, is_coalesced=False,
    )  # fmt: skip


_KERNELS: dict[str, Callable[..., Any]] = {
    "_coalesce": coalesce,
    "add.Tensor": add,
    "add_.Tensor": add_,
    "sub.Tensor": sub,
    "sub_.Tensor": sub_,
    "mul.Tensor": mul,
    "mul_.Tensor": mul_,
    "div.Tensor": div,
    "div_.Tensor": div_,
    "pow.Tensor_Scalar": power,
    "copy_": copy_,
    "zero_": zero_,
    "_to_dense": to_dense,
    "sparse_mask": sparse_mask,
    "sum": total,
    "native_norm": native_norm,
    "norm.ScalarOpt_dim": norm_along,
    "norm.ScalarOpt_dim_dtype": norm_along,
    "mm": mm,
    "addmm": addmm,
    "index_select": index_select,
}
