"""Stand-in for xFormers: memory-efficient attention, as torch's own kernel of that name."""

__version__ = "0.0.33"
