"""Every operator with a CUDA kernel in a CUDA build has one here, and can tell the shapes of its results."""

import sys

import kernel_probe

kernel_probe.arm()

import torch
from kernel_probe import finish, probe

from phantora.intercept import kernels, meta_functions
from phantora.intercept.operators import NATIVE, cuda_operators, is_simulated

HAS = torch._C._dispatch_has_kernel_for_dispatch_key
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "CompositeImplicitAutograd")

# Without shape function: neither a Meta nor a CPU kernel in torch. Hardly met in training; a call says so.
NO_SHAPE = {
    "_cslt_compress": "cuSPARSELt",
    "_cslt_sparse_mm_search": "cuSPARSELt",
    "_sparse_semi_structured_tile": "2:4 sparsity",
    "_sparse_semi_structured_apply": "2:4 sparsity",
    "_sparse_semi_structured_apply_dense": "2:4 sparsity",
    "_to_sparse_semi_structured": "2:4 sparsity",
    "_mixed_dtypes_linear": "quantized inference",
    "_scaled_grouped_mm_v2": "its inputs come as lists of recipes",
    "_triton_scaled_dot_attention": "not built by default",
    "_triton_multi_head_attention": "not built by default",
    "_cudnn_attention_forward": "called inside _scaled_dot_product_cudnn_attention",
    "_cudnn_attention_backward": "called inside its backward",
}


def names():
    return [op.name for op in cuda_operators()]


def _exists(name):
    return kernels.overload_named(name) is not None


@probe
def kernels_are_registered():
    missing = [n for n in names() if (is_simulated(n) or n in NATIVE) and _exists(n) and not HAS(f"aten::{n}", "CUDA")]
    assert not missing, missing


@probe
def nearly_all_exist_in_this_build():
    absent = [n for n in names() if not _exists(n)]
    assert len(absent) < 10, absent


@probe
def shapes_are_known():
    def knows(name):
        own = name in kernels._OWN_KERNELS or name in meta_functions.names()
        op = kernels.overload_named(name)
        in_place = op is not None and kernels.Kernel(op).schema.is_in_place
        keys = ("Meta", "CPU", *COMPOSITE)
        return own or in_place or any(HAS(f"aten::{name}", key) for key in keys)

    unknown = [n for n in names() if is_simulated(n) and _exists(n) and not knows(n)]
    without_out = [
        n for n in unknown if n.partition(".")[0] not in NO_SHAPE and n.partition(".")[0] not in meta_functions.names()
    ]
    assert not without_out, without_out
    stale = [n for n in NO_SHAPE if knows(n)]
    assert not stale, stale


@probe
def most_are_planned():
    planned = [n for n in names() if is_simulated(n) and kernels.overload_named(n) is not None]
    assert len(planned) > 1200
    assert "torch._meta_registrations" in sys.modules


finish()
