"""Stand-in for xformers.ops.fmha."""

from xformers.ops.fmha import attn_bias
from xformers.ops.fmha.attn_bias import LowerTriangularMask

__all__ = ["LowerTriangularMask", "attn_bias"]
