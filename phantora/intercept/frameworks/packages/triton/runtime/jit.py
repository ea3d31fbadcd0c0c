"""Stand-in for triton.runtime.jit."""

from phantora.intercept.frameworks.triton_launches import KernelLauncher as JITFunction

KernelInterface = JITFunction
__all__ = ["JITFunction", "KernelInterface"]
