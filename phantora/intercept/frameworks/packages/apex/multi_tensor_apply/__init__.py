"""Stand-in for apex.multi_tensor_apply."""

from phantora.intercept.frameworks.multi_tensor import MultiTensorApply, multi_tensor_applier

__all__ = ["MultiTensorApply", "multi_tensor_applier"]
