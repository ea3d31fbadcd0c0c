"""Stand-in for triton.language.math."""

from triton.names import names_of

__getattr__ = names_of(__name__)
