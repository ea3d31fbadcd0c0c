"""Operators -> nanoseconds on a GPU: Pricer(gpu, host).price(OpCall) -> Price. No torch here."""

from phantora.compute.call import OpCall, Price, TensorSpec
from phantora.compute.pricer import Pricer
from phantora.compute.table import Table, load

__all__ = ["OpCall", "Price", "Pricer", "Table", "TensorSpec", "load"]
