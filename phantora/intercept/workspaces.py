"""Memory that cuBLAS takes from the caching allocator.

ATen keeps one cuBLAS handle per host thread, and for each (handle, stream) one workspace; cuBLASLt has its own per
(handle, stream), taken when an epilogue needs it (addmm with a bias vector, _scaled_mm). They are never given back,
unless the script calls torch._C._cuda_clearCublasWorkspaces(). Sizes: aten/src/ATen/cuda/CublasHandlePool.cpp; read on
an H200 (torch 2.11): 32 MiB for a first mm, bmm, mv or linalg.inv, 1 MiB more for a first addmm, 32 MiB more for the
autograd thread, and the same again on a side stream. So a training script with biases holds 65 MiB.

Taken when a GEMM comes through Python, that is at the first call of each signature. A signature that is planned already
and then runs on another thread or stream (recomputed addmm of activation checkpointing: 1 MiB) takes none.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.flags import GEMMS

native: Any = sys.modules["phantora_native"]

_KIB = 1 << 10
_HOPPER_OR_LATER_BYTES = 32 * 1024 * _KIB  # 4096 KiB x 8
_OLDER_BYTES = (4096 * 2 + 16 * 8) * _KIB  # :4096:2:16:8
_LT_DEFAULT_KIB = 1024

_TAKES_LT = frozenset(("addmm", "_addmm_activation", "_scaled_mm", "_scaled_grouped_mm", "_int_mm"))
_TAKES_CUBLAS = frozenset(
    {name.partition(".")[0] for name in GEMMS} | _TAKES_LT | {"linalg_inv_ex", "linalg_lu_factor_ex"}
)

_workspaces: dict[tuple[int, int, int, bool], Tensor] = {}


def is_needed(operator: str) -> bool:
    """Whether operator `operator` (no overload) goes through a cuBLAS handle with a workspace."""
    return operator in _TAKES_CUBLAS


def ensure(operator: str, device: int) -> None:
    """Take the workspaces that the calling thread still lacks on its current stream of `device`."""
    place = (threading.get_ident(), device, native.stream(device))
    _take((*place, False), _cublas_bytes(), device)
    if operator in _TAKES_LT:
        _take((*place, True), _lt_bytes(), device)


def clear() -> None:
    """torch._C._cuda_clearCublasWorkspaces()"""
    _workspaces.clear()


def _take(key: tuple[int, int, int, bool], num_bytes: int, device: int) -> None:
    if num_bytes and key not in _workspaces:
        _workspaces[key] = torch.ops.aten.empty.memory_format(
            [num_bytes], dtype=torch.uint8, device=torch.device("cuda", device)
        )


def _cublas_bytes() -> int:
    config = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    if config:
        pairs = re.findall(r":([0-9]+):([0-9]+)", config)
        return sum(int(size) * int(count) for size, count in pairs) * _KIB if pairs else 4096 * 8 * _KIB
    return _HOPPER_OR_LATER_BYTES if torch.cuda.get_device_capability()[0] >= 9 else _OLDER_BYTES


def _lt_bytes() -> int:
    return int(os.environ.get("CUBLASLT_WORKSPACE_SIZE", _LT_DEFAULT_KIB)) * _KIB
