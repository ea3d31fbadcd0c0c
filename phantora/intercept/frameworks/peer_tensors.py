"""A tensor in the memory of another GPU, mapped into this one's address space.

Only copies are known to cross the links; an operator that computes on such a tensor directly is priced as if it lay in
this GPU's memory, and the report says so. Contents of peers are not known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from phantora.intercept import contents, session
from phantora.intercept.launching import launch

native: Any = sys.modules["phantora_native"]
_KEY: Any = torch._C._parse_dispatch_key("TESTING_ONLY_GenericWrapper")  # type: ignore[attr-defined]


class PeerTensor(Tensor):
    """Looks like a plain CUDA tensor of this GPU, as the real one does; `_stand_in`, of equal layout, is in this GPU's
    own buffer."""

    _stand_in: Tensor

    @staticmethod
    def __new__(cls, stand_in: Tensor) -> PeerTensor:
        made = Tensor._make_wrapper_subclass(
            cls, stand_in.shape, strides=stand_in.stride(), storage_offset=stand_in.storage_offset(),
            dtype=stand_in.dtype, device=stand_in.device,
        )  # fmt: skip
        made._stand_in = stand_in
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        plain_args, plain_kwargs = tree_map_only(PeerTensor, lambda t: t._stand_in, (args, kwargs or {}))
        with _as_if_no_subclass():
            if func is torch.ops.aten.copy_.default and all(t.is_cuda for t in plain_args[:2]):
                _copy(*plain_args[:2])
                return args[0]
            result = func(*plain_args, **plain_kwargs)
        if func.is_view or torch.Tag.inplace_view in func.tags:
            return tree_map_only(Tensor, PeerTensor, result)
        session.remark(f"{func}: priced as if its operand in another GPU's memory were in its own")
        return args[0] if func._schema.is_mutable and result is plain_args[0] else result

    def __repr__(self) -> str:  # type: ignore[override]
        return f"PeerTensor({tuple(self.shape)}, {self.dtype})"


def _copy(target: Tensor, source: Tensor) -> None:
    launch(target.get_device(), "memcpy_p2p", ("self", target), ("src", source), mutated=("self",))
    contents.forget(target)


@contextmanager
def _as_if_no_subclass() -> Iterator[None]:
    """What runs inside costs the host what plain tensors cost: real ones are plain (clock.cpp, is_inside_subclass)."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded.remove(_KEY)):
        yield
