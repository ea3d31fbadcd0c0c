"""Which operators a CUDA build of torch has kernels for, read from the native_functions.yaml that ships with torchgen.

A CPU build lacks all of them; `kernels.py` supplies one for each. Three facts of an operator matter here: its name, how
the CUDA build checks the devices of its arguments, and the name that its wrapper has in that check's error message.
"""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass


class DeviceCheck(enum.Enum):
    """How a CUDA build treats arguments on different devices (the `device_check` line of the operator)."""

    ALL_SAME = "all tensors on one device, checked by the generated wrapper"
    ITERATOR = "TensorIterator: one device, but CPU tensors without dimensions may mix in"
    NONE = "the kernel itself decides"


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaOperator:
    """One operator with a CUDA kernel. `name` is 'add.Tensor' (no overload: 'mm'); `wrapper` as error messages name
    it."""

    name: str
    check: DeviceCheck
    wrapper: str


# Not in native_functions.yaml under CUDA, yet one kernel of the simulated device: cuDNN's convolution is chosen and
# called inside these two, and their price is that of the whole (bias included).
CONVOLUTIONS = ("convolution", "convolution_backward")

# Implemented in phantora/intercept/native: they touch metadata and storages only.
NATIVE = frozenset(
    """empty.memory_format empty_strided resize_ set_.source_Storage_storage_offset set_.source_Storage
    set_.source_Tensor set_ record_stream as_strided view view.dtype view_as_real view_as_complex _reshape_alias unfold
    alias""".split()
)

# Left out, with the reason; a call raises torch's own NotImplementedError.
NOT_SIMULATED = {
    "_cudnn_init_dropout_state": "replaced in rnn.py, which needs no dropout state",
    "_cudnn_ctc_loss": "torch chooses it only for targets on the CPU with cuDNN's limits; _ctc_loss is simulated",
    "_cudnn_ctc_loss.Tensor": "as _cudnn_ctc_loss",
}
_AMD_ONLY = re.compile(r"^_?(miopen|batch_norm_.*hip|hip)")


def is_simulated(name: str) -> bool:
    """Whether `kernels.py` registers a kernel for the CUDA operator `name`."""
    return name not in NATIVE and name not in NOT_SIMULATED and not _AMD_ONLY.match(name)


def cuda_operators(path: str | None = None) -> list[CudaOperator]:
    """Every operator with its own CUDA kernel in a CUDA build, in the order of the yaml file."""
    with open(path or _yaml_path(), encoding="utf-8") as file:
        entries = file.read().split("\n- func: ")[1:]
    found = (_parse(entry) for entry in entries)
    return [operator for operator in found if operator is not None]


def _yaml_path() -> str:
    import torchgen

    return os.path.join(os.path.dirname(torchgen.__file__), "packaged", "ATen", "native", "native_functions.yaml")


def _parse(entry: str) -> CudaOperator | None:
    lines = entry.split("\n")
    name = lines[0].split("(", 1)[0].strip()
    structured = "\n  structured_delegate:" in entry or "\n  structured: True" in entry
    if not structured and not _has_cuda_kernel(lines):
        return None
    if structured and "\n  structured: True" in entry and not _has_cuda_kernel(lines):
        return None
    return CudaOperator(name=name, check=_device_check(entry), wrapper=_wrapper(name, structured))


def _has_cuda_kernel(lines: list[str]) -> bool:
    inside = False
    for line in lines:
        if line.startswith("  dispatch:"):
            inside = True
        elif inside and line.startswith("    "):
            keys = line.split("#", 1)[0].split(":", 1)[0]
            if "CUDA" in [key.strip() for key in keys.split(",")]:
                return True
        elif line.strip():
            inside = False
    return False


def _device_check(entry: str) -> DeviceCheck:
    match = re.search(r"\n  device_check: NoCheck(.*)", entry)
    if match is None:
        return DeviceCheck.ALL_SAME
    return DeviceCheck.ITERATOR if "TensorIterator" in match.group(1) else DeviceCheck.NONE


def _wrapper(name: str, structured: bool) -> str:
    """torchgen names wrapper_CUDA_<name>_<overload> (structured) or wrapper_CUDA_<overload>_<name>."""
    base, _, overload = name.partition(".")
    if structured:
        return f"wrapper_CUDA_{base}_{overload}" if overload else f"wrapper_CUDA_{base}"
    return f"wrapper_CUDA_{overload}_{base}"
