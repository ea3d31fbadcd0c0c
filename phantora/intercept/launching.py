"""Launching work that has no generic kernel behind it: one `OpCall`, one record on the current stream."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from phantora.compute.call import OpCall, Value
from phantora.intercept import session
from phantora.intercept.calls import value_of

native: Any = sys.modules["phantora_native"]
_signatures: dict[Any, int] = {}


def signature(
    name: str,
    args: tuple[tuple[str, Any], ...],
    outputs: tuple[Tensor, ...] = (),
    mutated: tuple[str, ...] = (),
    overload: str = "",
) -> int:
    """The signature id of a call described by hand; `args` are (schema name, value) pairs."""
    described: tuple[tuple[str, Value], ...] = tuple((key, value_of(value)) for key, value in args)
    made = tuple(value_of(output) for output in outputs)
    key = (name, overload, described, made, mutated)
    known = _signatures.get(key)
    if known is None:
        call = OpCall(name=name, overload=overload, args=described, outputs=made, mutated=mutated)
        known = _signatures[key] = session.register_price(call)
    return known


def launch(
    device: int, name: str, *args: tuple[str, Any], outputs: tuple[Tensor, ...] = (), mutated: tuple[str, ...] = ()
) -> None:
    """Launch the work on the calling thread's current stream of `device`."""
    native.launch(signature(name, args, outputs, mutated), device)
