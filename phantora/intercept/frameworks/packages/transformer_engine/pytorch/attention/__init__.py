"""Stand-in for transformer_engine.pytorch.attention."""

from transformer_engine.pytorch.attention import rope
from transformer_engine.pytorch.attention.dot_product import DotProductAttention

__all__ = ["DotProductAttention", "rope"]
