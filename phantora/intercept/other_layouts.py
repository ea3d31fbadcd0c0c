"""Nested and compressed sparse tensors: what is simulated of them beyond torch's device-independent code, and what is
not.

Nested tensors are lists of dense tensors in one buffer, and torch's generic functions build on dense operators. Of the
compressed sparse layouts (CSR, CSC, BSR, BSC) nothing is simulated; a call says so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet

_CPU_KEYS = DispatchKeySet(DispatchKey.NestedTensorCPU)
_COMPRESSING = ("_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc")


def install(libraries: list[Any]) -> None:
    """Register the kernels and the refusals."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("to_padded_tensor", to_padded_tensor, "NestedTensorCUDA")
    for name in _COMPRESSING:
        library.impl(name, _refuse_conversion, "CUDA")
    everything = torch.library.Library("_", "IMPL")
    everything.fallback(_refuse, "SparseCsrCUDA")
    libraries.extend((library, everything))


def to_padded_tensor(self: Tensor, padding: float, output_size: list[int] | None = None) -> Tensor:
    """aten::to_padded_tensor: torch's generic function, one padded copy per component."""
    op = torch.ops.aten.to_padded_tensor.default
    return op.redispatch(_CPU_KEYS, self, padding, output_size)


def _refuse(op: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        f"{op.name()} on compressed sparse tensors (CSR, CSC, BSR, BSC) is not simulated on the GPU: only COO is"
    )


def _refuse_conversion(self: Tensor, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(
        "compressed sparse tensors (CSR, CSC, BSR, BSC) are not simulated on the GPU: only sparse COO is"
    )
