"""Stand-in for transformer_engine.pytorch.tensor: no tensor is ever of these classes."""


class QuantizedTensor:
    """Base of tensors that are kept in 8 bits."""


class Float8Tensor(QuantizedTensor):
    """A tensor in FP8 with one scale."""
