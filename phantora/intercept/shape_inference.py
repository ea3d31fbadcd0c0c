"""Shapes, strides and aliasing of an operator's results: asked once per signature of torch's own meta kernels.

The answer is a list of recipes, one per result, which a kernel follows at every later call of the signature.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import layouts
from phantora.intercept.checks import broadcasting
from phantora.intercept.schemas import Schema, tensors_in

native: Any = sys.modules["phantora_native"]

_aten = torch.ops.aten
_empty_strided = _aten.empty_strided.default
_resize = _aten.resize_.default
_as_strided = _aten.as_strided.default
_META = torch.device("meta")
_CPU_TRIAL_LIMIT_BYTES = 64 << 20
# torch's Python meta kernels with out= do not take a CPU number as first operand, which CUDA does.
_CPU_TO_META = "Attempting to copy from device cpu to device meta"


@dataclass(slots=True)
class New:
    """A new tensor."""

    spec: Any  # native.Spec

    def make(self, leaves: list[Tensor], device: int) -> Any:
        return self.spec.make(device)


@dataclass(slots=True)
class NewList:
    """A list of new tensors."""

    specs: list[Any]

    def make(self, leaves: list[Tensor], device: int) -> Any:
        return [spec.make(device) for spec in self.specs]


@dataclass(slots=True)
class Argument:
    """One of the call's own tensors."""

    leaf: int

    def make(self, leaves: list[Tensor], device: int) -> Any:
        return leaves[self.leaf]


@dataclass(slots=True)
class ResizedArgument:
    """An out= tensor that had another shape."""

    leaf: int
    shape: tuple[int, ...]

    def make(self, leaves: list[Tensor], device: int) -> Any:
        return _resize(leaves[self.leaf], list(self.shape))


@dataclass(slots=True)
class View:
    """Another look at the storage of one of the call's tensors; conj and neg: bits to set on it."""

    leaf: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    flips_conj: bool
    flips_neg: bool

    def make(self, leaves: list[Tensor], device: int) -> Any:
        base = leaves[self.leaf]
        view = _as_strided(base, self.shape, self.stride, base.storage_offset() + self.offset)
        torch._C._set_conj(view, base.is_conj() != self.flips_conj)
        torch._C._set_neg(view, base.is_neg() != self.flips_neg)
        return view


@dataclass(slots=True)
class OnHost:
    """A new CPU tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def make(self, leaves: list[Tensor], device: int) -> Any:
        return torch.zeros(self.shape, dtype=self.dtype, device="cpu")


@dataclass(slots=True)
class Constant:
    """Something that is no tensor (or None)."""

    value: Any

    def make(self, leaves: list[Tensor], device: int) -> Any:
        return self.value


class UnconfirmedError(Exception):
    """A meta kernel refused the arguments, and the CPU's kernel did not (or was not asked)."""

    def __init__(self, original: Exception) -> None:
        super().__init__(str(original))
        self.original = original


Recipe = New | NewList | Argument | ResizedArgument | View | OnHost | Constant


@dataclass(slots=True)
class Inferred:
    """recipes: one per result. outputs: what the call makes, as meta tensors (for the `OpCall`)."""

    recipes: list[Recipe]
    outputs: list[Tensor]


def infer(op: Any, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inferred:
    """Run `op` on meta tensors shaped like the arguments. A mistake of the script raises here what it raises on a
    GPU."""
    meta_args = tuple(to_meta(a) for a in args)
    meta_kwargs = {k: to_meta(v) for k, v in kwargs.items() if k != "pin_memory"}
    try:
        result = op(*meta_args, **meta_kwargs)
    except NotImplementedError as error:
        result = _try_on_cpu(op, schema, args, kwargs, error)
    except (RuntimeError, IndexError, ValueError) as error:
        if _CPU_TO_META not in str(error):
            raise _as_torch_says_it(op, args, kwargs, error) from None
        meta_args = tuple(_all_meta(a) for a in meta_args)
        result = op(*meta_args, **meta_kwargs)
    result = layouts.corrected(schema.name, result, meta_args)
    results = [] if result is None else [result] if schema.num_returns == 1 else list(result)
    leaves = tensors_in(args, kwargs)
    meta_leaves = tensors_in(meta_args, meta_kwargs)
    recipes = [_recipe(r, leaves, meta_leaves) for r in results]
    made = [r for r, recipe in zip(results, recipes) if isinstance(recipe, (New, NewList, ResizedArgument, View))]
    return Inferred(recipes, tensors_in(made, {}))


def infer_meta(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of `op` as meta tensors; a mistake raises what the CPU raises, an error that only the meta kernel
    knows raises `UnconfirmedError`."""
    try:
        return op(*[to_meta(a) for a in args], **{k: to_meta(v) for k, v in kwargs.items()})
    except NotImplementedError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        said = _as_torch_says_it(op, args, kwargs, error)
        if said is error:
            raise UnconfirmedError(error) from None
        raise said from None


def to_meta(value: Any) -> Any:
    """CUDA tensors and CPU tensors with dimensions become meta tensors of the same layout; the rest stays."""
    if isinstance(value, Tensor):
        return _meta_tensor(value) if value.is_cuda or value.dim() else value
    if isinstance(value, (list, tuple)):
        return [to_meta(item) for item in value]
    if isinstance(value, torch.Generator):
        return None
    return _META if isinstance(value, torch.device) else value


def _all_meta(value: Any) -> Any:
    """CPU numbers become meta tensors too."""
    return value.to(_META) if isinstance(value, Tensor) else value


def _meta_tensor(t: Tensor) -> Tensor:
    meta = _empty_strided(t.shape, t.stride(), dtype=t.dtype, device=_META)
    if t.is_conj():
        meta = torch._conj(meta)
    return torch._neg_view(meta) if t.is_neg() else meta


def _recipe(result: Any, leaves: list[Tensor], meta_leaves: list[Tensor]) -> Recipe:
    if isinstance(result, Tensor):
        return _tensor_recipe(result, leaves, meta_leaves)
    if isinstance(result, (list, tuple)) and result and isinstance(result[0], Tensor):
        return NewList([native.Spec(t) for t in result])
    return Constant(result)


def _tensor_recipe(result: Tensor, leaves: list[Tensor], meta_leaves: list[Tensor]) -> Recipe:
    for index, meta in enumerate(meta_leaves):
        if meta is result:
            same = tuple(result.shape) == tuple(leaves[index].shape)
            return Argument(index) if same else ResizedArgument(index, tuple(result.shape))
    if result.device.type == "cpu":
        return OnHost(tuple(result.shape), result.dtype)
    storage = result.untyped_storage()._cdata
    for index, meta in enumerate(meta_leaves):
        if meta.device.type == "meta" and meta.untyped_storage()._cdata == storage:
            flips = (result.is_conj() != meta.is_conj(), result.is_neg() != meta.is_neg())
            return View(index, tuple(result.shape), tuple(result.stride()), result.storage_offset(), *flips)
    return New(native.Spec(result))


def _try_on_cpu(op: Any, schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """Shapes of an operator without meta kernel: from its CPU kernel, on ones, as long as that is cheap."""
    num_bytes = sum(t.numel() * t.itemsize for t in tensors_in(args, kwargs))
    message = f"the simulated GPU has no shape function for {schema.name}.{schema.overload or 'default'}"
    if num_bytes > _CPU_TRIAL_LIMIT_BYTES:
        raise NotImplementedError(f"{message}, and its arguments are too large to try it on the CPU") from error
    try:
        result = op(*[_ones(a) for a in args], **{k: _ones(v) for k, v in kwargs.items() if k != "generator"})
    except (RuntimeError, NotImplementedError) as failed:
        raise NotImplementedError(f"{message}, and on the CPU it fails: {failed}") from error
    return [to_meta(r) for r in result] if isinstance(result, (list, tuple)) else to_meta(result)


def _as_torch_says_it(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Exception:
    """The error of the CPU kernel, whose wording CUDA shares; torch's Python meta kernels have their own."""
    tensors = tensors_in(args, kwargs)
    if torch.Tag.pointwise in op.tags:
        mismatch = broadcasting.mismatch([t.shape for t in tensors])
        if mismatch is not None:
            return mismatch
    if sum(t.numel() * t.itemsize for t in tensors) > _CPU_TRIAL_LIMIT_BYTES:
        return error
    try:
        op(*[_ones(a) for a in args], **{k: _ones(v) for k, v in kwargs.items() if k != "generator"})
    except NotImplementedError:
        return error
    except (RuntimeError, IndexError, ValueError) as on_cpu:
        return on_cpu.with_traceback(None)
    return error


def _ones(value: Any) -> Any:
    if isinstance(value, Tensor):
        if not value.is_cuda:
            return value
        return _empty_strided(value.shape, value.stride(), dtype=value.dtype, device=torch.device("cpu")).fill_(1)
    if isinstance(value, (list, tuple)):
        return [_ones(item) for item in value]
    return torch.device("cpu") if isinstance(value, torch.device) else value
