"""Stand-in for transformer_engine.pytorch.module."""

from transformer_engine.pytorch.module.grouped_linear import GroupedLinear
from transformer_engine.pytorch.module.linear import LayerNormLinear, LayerNormMLP, Linear
from transformer_engine.pytorch.module.norms import LayerNorm, RMSNorm

__all__ = ["GroupedLinear", "LayerNorm", "LayerNormLinear", "LayerNormMLP", "Linear", "RMSNorm"]
