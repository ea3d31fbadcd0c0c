"""Launches of other people's kernels that do what a known operator does: priced as that one, and said to be a guess."""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor

from phantora.compute.call import OpCall
from phantora.intercept import contents, session
from phantora.intercept.calls import value_of
from phantora.intercept.schemas import tensors_in

native: Any = sys.modules["phantora_native"]


def launch_like(
    like: str, name: str, *args: tuple[str, Any], outputs: tuple[Tensor, ...] = (), mutated: tuple[str, ...] = ()
) -> None:
    """Launch `name` ('package::kernel') on the current stream; its price is that of `like` ('aten::_fused_adamw_').

    args: (name in the schema of `like`, value). What is `mutated` has no known contents afterwards.
    """
    on_gpu = [tensor for tensor in tensors_in([value for _, value in args], {}) if tensor.is_cuda]
    call = OpCall(
        name=name,
        args=tuple((key, value_of(value)) for key, value in args),
        outputs=tuple(value_of(output) for output in outputs),  # type: ignore[misc]
        mutated=mutated,
        flags=(("priced_as", like),),
    )
    native.launch(session.register_price(call), on_gpu[0].get_device())
    for key, value in args:
        if key in mutated:
            for tensor in tensors_in([value], {}):
                contents.forget(tensor)
