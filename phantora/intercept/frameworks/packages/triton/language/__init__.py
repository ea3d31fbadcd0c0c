"""Stand-in for triton.language."""

from triton.names import names_of

__getattr__ = names_of(__name__)
