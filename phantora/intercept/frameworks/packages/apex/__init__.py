"""Stand-in for NVIDIA apex: fused norms and optimizers."""

from apex import multi_tensor_apply, normalization, optimizers

__all__ = ["multi_tensor_apply", "normalization", "optimizers"]
