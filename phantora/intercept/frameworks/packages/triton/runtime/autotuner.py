"""Stand-in for triton.runtime.autotuner."""

from phantora.intercept.frameworks.triton_launches import KernelLauncher as Autotuner

Heuristics = Autotuner
__all__ = ["Autotuner", "Heuristics", "OutOfResources"]


class OutOfResources(Exception):
    """Never raised: nothing is compiled."""
