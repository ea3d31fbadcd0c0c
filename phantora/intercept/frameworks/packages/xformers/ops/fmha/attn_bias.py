"""Masks that are described, not stored."""


class AttentionBias:
    """Base of all."""


class LowerTriangularMask(AttentionBias):
    """Causal."""
