"""The kernels of the simulated CUDA device: one for every operator that has a CUDA kernel in a CUDA build of torch.

`install()` runs right after `import torch`. Most operators get a generic `Kernel`; copies, fills, reads and operators
whose shapes depend on data have their own. Native code then plans repeats of each (`native.fast`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from phantora.intercept import (
    attention,
    comparisons,
    contents,
    copies,
    custom_ops,
    data_dependent,
    factories,
    host_reads,
    meta_functions,
    other_layouts,
    rnn,
    sparse,
)
from phantora.intercept.flags import context
from phantora.intercept.generic_kernel import Kernel
from phantora.intercept.operators import CONVOLUTIONS, CudaOperator, DeviceCheck, cuda_operators, is_simulated

native: Any = sys.modules["phantora_native"]

_libraries: list[Any] = []  # registrations live as long as these

_OWN_KERNELS: dict[str, Callable[..., Any]] = {
    "copy_": copies.copy_,
    "zero_": copies.zero_,
    "fill_.Scalar": copies.fill_scalar_,
    "fill_.Tensor": copies.fill_tensor_,
    "_local_scalar_dense": host_reads.local_scalar_dense,
    "equal": host_reads.equal,
    "nonzero": data_dependent.nonzero,
    "nonzero.out": data_dependent.nonzero_out,
    "masked_select": data_dependent.masked_select,
    "masked_select.out": data_dependent.masked_select_out,
    "_unique2": data_dependent.unique2,
    "unique_dim": data_dependent.unique_dim,
    "unique_consecutive": data_dependent.unique_consecutive,
    "bincount": data_dependent.bincount,
    "histc": data_dependent.histc,
    "repeat_interleave.Tensor": data_dependent.repeat_interleave,
    "_amp_foreach_non_finite_check_and_unscale_": host_reads.unscale_and_check,
    "_assert_async": host_reads.assert_async,
    "_assert_async.msg": host_reads.assert_async,
    "_use_cudnn_ctc_loss": data_dependent.never,
    "_use_cudnn_ctc_loss.Tensor": data_dependent.never,
    "_use_miopen_ctc_loss": data_dependent.never,
    "_use_miopen_ctc_loss.Tensor": data_dependent.never,
    "is_set_to": data_dependent.is_set_to,
    "_embedding_bag_backward": factories.embedding_bag_backward,
    "_efficientzerotensor": factories.efficient_zero_tensor,
    "_cudnn_rnn_flatten_weight": rnn.flatten_weight,
    "_fused_sdp_choice": attention.fused_sdp_choice,
    "sparse_mask": sparse.sparse_mask,
    "_to_sparse.sparse_dim": sparse.to_sparse,
    "_to_sparse": sparse.to_sparse_default,
}

# Kernels around the generic one of the same operator.
_AROUND: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "index.Tensor": data_dependent.with_expanded_masks,
    "_index_put_impl_": data_dependent.with_masked_fill,
    "topk": data_dependent.with_even_indices,
    "where.self": comparisons.with_one_side,
    "isin.Tensor_Tensor": comparisons.with_no_members,
    "isin.Tensor_Scalar": comparisons.with_no_members,
    **{f"eq.{other}": comparisons.with_unequal_integers(False) for other in ("Scalar", "Tensor")},
    **{f"ne.{other}": comparisons.with_unequal_integers(True) for other in ("Scalar", "Tensor")},
    **{
        f"{name}.{other}": comparisons.with_ordinary_numbers(getattr(torch, name))
        for name in ("gt", "ge", "lt", "le")
        for other in ("Scalar", "Tensor")
    },
    "randperm.generator_out": data_dependent.with_real_permutation,
}

# Only written, never read: a plan may ignore that the old contents were known.
_PURE_OUT = {"copy_": 0, "zero_": 0, "fill_.Scalar": 0}
_NEVER_PLANNED = frozenset(_AROUND)


def install() -> int:
    """Register everything; returns the number of operators that have a kernel now."""
    contents.set_limits()
    meta_functions.install(_libraries)
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 'Overriding a previously registered kernel': on CUDA builds, on purpose
        registered = _register_operators(library)
        _register_above_autograd(library)
        sparse.install(_libraries)
        other_layouts.install(_libraries)
        custom_ops.install(_libraries)
    attention.answer_torch_backends_cuda()
    context.install()
    return len(registered)


def _register_operators(library: Any) -> dict[str, Callable[..., Any]]:
    registered: dict[str, Callable[..., Any]] = {}
    for operator in _all_operators():
        kernel = _kernel_of(operator)
        if kernel is None:
            continue
        registered[operator.name] = kernel
        library.impl(operator.name, kernel, "CUDA")
        if _is_planned(operator.name, kernel):
            base, _, overload = operator.name.partition(".")
            native.fast(base, overload, _PURE_OUT.get(operator.name, -1))
    return registered


def _all_operators() -> list[CudaOperator]:
    found = {op.name: op for op in cuda_operators() if is_simulated(op.name)}
    for name in (*CONVOLUTIONS, *_OWN_KERNELS):
        found.setdefault(name, CudaOperator(name=name, check=DeviceCheck.NONE, wrapper=name))
    return list(found.values())


def _kernel_of(operator: CudaOperator) -> Callable[..., Any] | None:
    own = _OWN_KERNELS.get(operator.name)
    if own is not None:
        return own
    op = overload_named(operator.name)
    if op is None:  # the yaml file lists it, this build of torch does not have it
        return None
    generic = Kernel(op, operator)
    around = _AROUND.get(operator.name)
    return generic.__call__ if around is None else around(generic)


def overload_named(name: str) -> Any | None:
    """torch.ops.aten's overload for 'add.Tensor' or 'mm'; None when this build lacks it."""
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return None if packet is None else getattr(packet, overload or "default", None)


def _is_planned(name: str, kernel: Callable[..., Any]) -> bool:
    if name in _PURE_OUT:
        return True
    generic = getattr(kernel, "__self__", None)
    if not isinstance(generic, Kernel) or name in _NEVER_PLANNED:
        return False
    return not (generic.exact_floats or generic.allocates_only or generic.schema.is_view)


def _register_above_autograd(library: Any) -> None:
    """Composite operators whose CUDA side a CPU build cannot reach, replaced by the operators that they end in."""
    composites: dict[str, Callable[..., Any]] = {"scaled_dot_product_attention": attention.scaled_dot_product_attention}
    for name, mode in rnn.MODES.items():
        composites[f"{name}.input"] = rnn.input_kernel(mode)
        composites[f"{name}.data"] = rnn.data_kernel(mode)
    for name, kernel in composites.items():
        for key in ("AutogradCUDA", "CUDA"):
            library.impl(name, kernel, key)
