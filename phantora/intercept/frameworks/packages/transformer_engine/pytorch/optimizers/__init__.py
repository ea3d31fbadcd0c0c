"""Stand-in for transformer_engine.pytorch.optimizers."""

from phantora.intercept.frameworks.multi_tensor import (
    FusedAdam,
    FusedSGD,
    MultiTensorApply,
    multi_tensor_adam,
    multi_tensor_applier,
    multi_tensor_l2norm,
    multi_tensor_scale,
    multi_tensor_sgd,
)

multi_tensor_scale_tensor = multi_tensor_scale
__all__ = [
    "FusedAdam",
    "FusedSGD",
    "MultiTensorApply",
    "multi_tensor_adam",
    "multi_tensor_applier",
    "multi_tensor_l2norm",
    "multi_tensor_scale",
    "multi_tensor_scale_tensor",
    "multi_tensor_sgd",
]
