"""Stand-in for Transformer Engine 2.6: modules whose kernels are priced, and whose communication is real to the
simulator.

What is here works as described in docs/frameworks.md; what is not (userbuffers, MXFP8 parameters, hierarchical context
parallelism, fused operations) is absent or raises.
"""

__version__ = "2.6.0"

from transformer_engine import common, pytorch  # noqa: E402

__all__ = ["common", "pytorch"]
