"""Stand-in for transformer_engine.common."""

from transformer_engine.common import recipe

__all__ = ["recipe"]
