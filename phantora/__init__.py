"""Phantora: how long will this PyTorch script take on that cluster, where does the time go, will it fit?

Importing this package never imports torch; only `phantora.intercept`, inside a rank process, does.
"""

__version__ = "0.1.0"
