"""Stand-in for apex.optimizers."""

from phantora.intercept.frameworks.multi_tensor import FusedAdam, FusedSGD

__all__ = ["FusedAdam", "FusedSGD"]
