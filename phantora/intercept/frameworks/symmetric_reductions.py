"""The operators of the namespace symm_mem that are one kernel on all GPUs of a group: priced as NCCL's.

Schemas: torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.cpp. On hardware the small ones are faster than NCCL's.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor

from phantora.intercept import session
from phantora.intercept.distributed import contents, groups, launches
from phantora.intercept.distributed.launches import Part

native: Any = sys.modules["phantora_native"]
_libraries: list[Any] = []


@functools.cache
def install() -> None:
    library = torch.library.Library("symm_mem", "IMPL")
    _libraries.append(library)
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "CUDA")


def _communicate(kind: str, whole: Tensor, output: Tensor, group_name: str, reduce_op: str = "") -> Tensor:
    """whole: the tensor whose bytes are the operation's size; output: whose contents become unknown."""
    import torch.distributed.distributed_c10d as c10d

    from phantora.intercept.frameworks.symmetric_memory import communicator_of

    group = groups.of_process_group(c10d._resolve_process_group(group_name))  # type: ignore[arg-type]
    dtype, count = launches.dtype_and_count(whole)
    part = Part(
        kind=kind, num_bytes=contents.size_bytes(whole), dtype=dtype, count=count, reduce_op=reduce_op.upper(),
        arrivals=((output, None),),
    )  # fmt: skip
    device = whole.get_device()
    launches.launch(communicator_of(group, kind), device, native.stream(device), [part])
    session.remark(f"symm_mem: its {kind} kernels are priced as NCCL's")
    return output


def _reduced(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return _communicate("all_reduce", input, torch.empty_like(input), group_name, reduce_op)


def _reduced_out(input: Tensor, reduce_op: str, group_name: str, out: Tensor) -> Tensor:
    return _communicate("all_reduce", input, out, group_name, reduce_op)


def _reduced_in_place(input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return _communicate("all_reduce", input, input, group_name, reduce_op)


def _copied_and_reduced(symm_buffer: Tensor, local_input: Tensor, reduce_op: str, group_name: str) -> Tensor:
    return _reduced(local_input, reduce_op, group_name)


def _copied_and_reduced_out(buffer: Tensor, local_input: Tensor, op: str, group_name: str, out: Tensor) -> Tensor:
    return _reduced_out(local_input, op, group_name, out)


def _gathered_out(input: Tensor, group_name: str, out: Tensor) -> Tensor:
    return _communicate("all_gather", out, out, group_name)


def _scattered_out(input: Tensor, group_name: str, split_last_dim: bool, output: Tensor) -> Tensor:
    return _communicate("reduce_scatter", input, output, group_name, "sum")


_KERNELS = {
    "one_shot_all_reduce": _reduced,
    "one_shot_all_reduce_out": _reduced_out,
    "one_shot_all_reduce_copy": _copied_and_reduced,
    "one_shot_all_reduce_copy_out": _copied_and_reduced_out,
    "two_shot_all_reduce_": _reduced_in_place,
    "two_shot_all_reduce_out": _reduced_out,
    "multimem_all_reduce_": _reduced_in_place,
    "multimem_one_shot_all_reduce": _reduced,
    "multimem_one_shot_all_reduce_out": _reduced_out,
    "multimem_all_gather_out": _gathered_out,
    "reduce_scatter_out": _scattered_out,
}
