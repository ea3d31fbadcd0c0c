"""Inductor's back end for `cuda`: its own scheduling and wrapper, with descriptions where Triton kernels were compiled.

`TritonScheduling` generates the text of each kernel as always (which buffers a group needs is decided while it does);
the text is measured (source.py, traffic.py) and what the wrapper module defines is
`triton_poi_fused_add_0 = fused_kernel('triton_poi_fused_add_0', {...})`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._inductor import async_compile, scheduler
from torch._inductor.codegen import common, triton
from torch._inductor.codegen.cuda_combined_scheduling import CUDACombinedScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from phantora.intercept.compiled import accesses, fused_kernel, source, traffic

_RUNTIME = "phantora.intercept.compiled.fused_kernel"


def install() -> None:
    """Register the back end, and answer the questions that Inductor asks Triton."""
    common.register_backend_for_device("cuda", SimulatedScheduling, SimulatedWrapper)
    scheduler.has_triton = lambda: True  # else: TritonMissing
    torch.utils._triton.triton_hash_with_backend = lambda: "phantora"  # part of cache keys
    # Kernels that are not made by the scheduling below: those that the script itself wrote in Triton.
    async_compile.AsyncCompile.triton = _foreign_kernel  # type: ignore[method-assign]
    torch._C._dynamo.guards._empty_strided_cuda = fused_kernel.empty_strided_cuda


def _foreign_kernel(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
    return fused_kernel.ForeignKernel(kernel_name)


class DescribingScheduling(triton.TritonScheduling):
    """Emits the description of a kernel instead of its source."""

    def _emit_kernel_to_wrapper(self, wrapper: Any, kernel: Any, src_code: str, kernel_name: str, *rest: Any) -> None:
        self._emit(wrapper, kernel, src_code, kernel_name, rest[1])

    def _emit(self, wrapper: Any, kernel: Any, text: str, name: str, node_schedule: Any) -> None:
        described = describe(kernel, text, node_schedule)
        wrapper.define_kernel(name, f"fused_kernel({name!r}, {described!r})", None)


class SimulatedScheduling(CUDACombinedScheduling):
    """CUDA's scheduling with the Triton part replaced; templates of CUTLASS and the like need a compiler and are not
    used."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self._triton_scheduling = DescribingScheduling(owner)


class SimulatedWrapper(PythonWrapperCodegen):
    """The Python module around the kernels, without `import triton`."""

    @staticmethod
    def create(is_subgraph: bool, *args: Any, **kwargs: Any) -> Any:
        if is_subgraph:
            return PythonWrapperCodegen.create(is_subgraph, *args, **kwargs)
        return SimulatedWrapper()

    def write_header(self) -> None:
        super().write_header()
        self.imports.writeline(f"from {_RUNTIME} import fused_kernel, get_raw_stream")

    def write_triton_header_once(self) -> None:
        pass

    def write_get_raw_stream_header(self) -> None:
        pass


def describe(kernel: Any, text: str, node_schedule: Any) -> dict[str, Any]:
    """What a price of `kernel` depends on, as literals (the wrapper's source is kept on disk by Inductor's cache)."""
    nodes = [node for entry in node_schedule for node in _scheduler_nodes(entry)]
    numels = {prefix: traffic.hint(numel) for prefix, numel in getattr(kernel, "numels", {}).items()}
    columns = 1
    for prefix, numel in numels.items():
        columns *= numel if prefix.startswith("r") else 1
    return {
        "kind": _kind(kernel, text),
        "arguments": traffic.of_arguments(kernel, nodes),
        "rows": _rows(kernel, numels),
        "columns": columns,
        "reductions": int(getattr(kernel, "num_reduction", 0)),
        **dataclasses.asdict(source.count(text)),
        **dataclasses.asdict(accesses.count(text)),
        "atomic": bool(getattr(kernel, "atomic_add_found", False)),
    }


def _scheduler_nodes(entry: Any) -> list[Any]:
    """The nodes of an entry of a schedule: markers have none, a combo kernel's stands for many."""
    return [node for node in entry.get_nodes() if hasattr(node, "read_writes")] if hasattr(entry, "get_nodes") else []


def _rows(kernel: Any, numels: dict[str, int]) -> int:
    """Elements of the iteration space beside the reduced ones; a combo kernel runs its parts side by side."""
    parts = getattr(kernel, "sub_kernels", None)
    if parts:
        return sum(_rows(part, {p: traffic.hint(n) for p, n in part.numels.items()}) for part in parts)
    rows = 1
    for prefix, numel in numels.items():
        rows *= 1 if prefix.startswith("r") else numel
    return rows


def _kind(kernel: Any, text: str) -> str:
    """One of compute.families.fused.KINDS."""
    if hasattr(kernel, "sub_kernels"):
        return "foreach"
    if not hasattr(kernel, "persistent_reduction") or "triton_heuristics.template" in text:
        return "template"
    if not kernel.inside_reduction:
        return "pointwise"
    if getattr(kernel, "mix_order_reduction", False):
        return "mixed"
    if kernel.persistent_reduction:
        return "persistent"
    return "outer" if "ReductionHint.OUTER" in text else "looped"

