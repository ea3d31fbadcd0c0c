"""Stand-in for apex's extension of kernels over lists."""

from phantora.intercept.frameworks.multi_tensor import (
    multi_tensor_adam,
    multi_tensor_axpby,
    multi_tensor_l2norm,
    multi_tensor_scale,
    multi_tensor_sgd,
)

__all__ = ["multi_tensor_adam", "multi_tensor_axpby", "multi_tensor_l2norm", "multi_tensor_scale", "multi_tensor_sgd"]
