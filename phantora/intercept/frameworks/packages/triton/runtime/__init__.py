"""Stand-in for triton.runtime."""

from triton.names import names_of
from triton.runtime.jit import JITFunction, KernelInterface

__all__ = ["JITFunction", "KernelInterface"]
__getattr__ = names_of(__name__)
