"""Names and arguments as CUDA, NCCL and PyTorch's profiler write them, for what a run calls otherwise.

Sources: libkineto's output_json.cpp, torch/csrc/profiler and torch/csrc/distributed/c10d/ParamCommsUtils.hpp (torch
2.11); NCCL's src/device/generate.py for names of kernels.
"""

from __future__ import annotations

from typing import Any

from phantora.trace.model import CollectiveInfo, SignatureInfo

_SCALAR_TYPES = {  # our dtype -> (element bytes, name in a collective's arguments, name in Input type, NCCL's suffix)
    "float64": (8, "Double", "double", "f64"), "float32": (4, "Float", "float", "f32"),
    "float16": (2, "Half", "c10::Half", "f16"), "bfloat16": (2, "BFloat16", "c10::BFloat16", "bf16"),
    "int64": (8, "Long", "long int", "i64"), "int32": (4, "Int", "int", "i32"),
    "int16": (2, "Short", "short int", "i16"), "int8": (1, "Char", "signed char", "i8"),
    "uint8": (1, "Byte", "unsigned char", "u8"), "bool": (1, "Bool", "bool", "u8"),
    "float8_e4m3fn": (1, "Float8_e4m3fn", "c10::Float8_e4m3fn", "f8e4m3"),
    "float8_e5m2": (1, "Float8_e5m2", "c10::Float8_e5m2", "f8e5m2"),
    "complex64": (8, "ComplexFloat", "c10::complex<float>", "f32"),
    "complex128": (16, "ComplexDouble", "c10::complex<double>", "f64"),
}  # fmt: skip
_COLLECTIVES = {  # kind -> (Collective name, function of NCCL's kernel)
    "all_reduce": ("allreduce", "AllReduce_Sum"), "all_gather": ("_allgather_base", "AllGather"),
    "reduce_scatter": ("_reduce_scatter_base", "ReduceScatter_Sum"), "broadcast": ("broadcast", "Broadcast"),
    "reduce": ("reduce", "Reduce_Sum"), "all_to_all": ("all_to_all", "SendRecv"), "gather": ("gather", "SendRecv"),
    "scatter": ("scatter", "SendRecv"), "barrier": ("barrier", "AllReduce_Sum"),
}  # fmt: skip
_COPIES = {
    "memcpy_h2d": "Memcpy HtoD (Pinned -> Device)", "memcpy_d2h": "Memcpy DtoH (Device -> Pinned)",
    "memcpy_d2d": "Memcpy DtoD (Device -> Device)",
}  # fmt: skip
WAITS = {  # reason -> (call, kind in the category cuda_sync)
    "stream": ("cudaStreamSynchronize", "Stream Sync"), "event": ("cudaEventSynchronize", "Event Sync"),
    "device": ("cudaDeviceSynchronize", "Context Sync"),
}  # fmt: skip


def kernel_names(signature: SignatureInfo) -> tuple[str, str, str]:
    """(category, name of the kernel, name of the call that launches it). Kernels have the names of their operators."""
    copy = _COPIES.get(signature.name)
    if copy is not None:
        return "gpu_memcpy", copy, "cudaMemcpyAsync"
    return "kernel", signature.name.rpartition("::")[2], "cudaLaunchKernel"


def nccl_kernel(info: CollectiveInfo) -> str:
    """'ncclDevKernel_AllReduce_Sum_bf16_RING_LL'. Sums, as a run does not record what is reduced how."""
    function = _COLLECTIVES.get(info.kind, ("", "SendRecv"))[1]
    if function == "SendRecv":
        return "ncclDevKernel_SendRecv"
    suffix = f"_{_SCALAR_TYPES.get(info.dtype, (1, '', '', 'u8'))[3]}" if function.endswith("_Sum") else ""
    algorithm, _, protocol = info.algorithm.partition("/")
    return f"ncclDevKernel_{function}{suffix}_{algorithm.strip().upper() or 'RING'}_{protocol.strip() or 'SIMPLE'}"


def input_types(signature: SignatureInfo) -> dict[str, Any]:
    """Input Dims and Input type of an operator."""
    return {
        "Input Dims": [list(shape) for _, shape in signature.inputs],
        "Input type": [_SCALAR_TYPES.get(dtype, (1, "", dtype, ""))[2] for dtype, _ in signature.inputs],
    }


def collective_name(info: CollectiveInfo, rank: int) -> str:
    """'allreduce', 'send', ... as in `Collective name`."""
    if info.kind == "send_recv":
        return "send" if rank == info.ranks[0] else "recv"
    return _COLLECTIVES[info.kind][0]


def collective_arguments(infos: list[CollectiveInfo], rank: int, group_name: str, sequence: int) -> dict[str, Any]:
    """Arguments of a communication kernel; of a coalesced one the first's, with the sizes of all that are like it."""
    first = infos[0]
    size_bytes, dtype = _SCALAR_TYPES.get(first.dtype, (1, first.dtype, "", ""))[:2]
    alike = [info for info in infos if (info.kind, info.ranks, info.dtype) == (first.kind, first.ranks, first.dtype)]
    elements = sum(info.bytes for info in alike) // size_bytes
    part = elements // len(first.ranks)
    sent, received = {
        "all_gather": (part, elements), "gather": (part, elements), "reduce_scatter": (elements, part),
        "scatter": (elements, part), "barrier": (0, 0),
    }.get(first.kind, (elements, elements))  # fmt: skip
    arguments = {
        "Collective name": collective_name(first, rank), "In msg nelems": sent, "Out msg nelems": received,
        "Group size": len(first.ranks), "dtype": dtype, "In split size": "[]", "Out split size": "[]",
        "Process Group Name": str(first.group), "Process Group Description": group_name,
        "Process Group Ranks": str(list(first.ranks)), "Seq": sequence,
    }  # fmt: skip
    if first.kind == "send_recv":
        arguments["Src Rank" if rank != first.ranks[0] else "Dst Rank"] = first.ranks[
            0 if rank != first.ranks[0] else 1
        ]
    elif first.kind in ("broadcast", "reduce", "gather", "scatter"):
        arguments["Rank"] = first.root
    if len(infos) > 1:
        arguments["Coalesced"] = len(infos)
    return arguments
