"""Stand-in for transformer_engine.pytorch.float8_tensor."""

from transformer_engine.pytorch.tensor import Float8Tensor

__all__ = ["Float8Tensor"]
