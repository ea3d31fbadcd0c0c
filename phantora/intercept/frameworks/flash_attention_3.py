"""torch.nn.attention's switch to FlashAttention 3, which puts kernels of the package flash_attn_interface at the CUDA key.

There are none: the simulated device's own flash attention stays, priced as version 2, which is slower (Shah et al., 2024,
FlashAttention-3, section 4: 1.5 to 2.0 times forward, 1.5 to 1.75 backward on H100). The report says so.
"""

from __future__ import annotations

from types import ModuleType

from phantora.intercept import session


def after(module: ModuleType) -> None:
    """`module` is torch.nn.attention._fa3; its registration looks these two up when it is asked for."""
    module._fa3_import_module = _nothing_to_import  # type: ignore[attr-defined]
    module._fa3_register_kernels = _no_kernels  # type: ignore[attr-defined]


def _nothing_to_import(module_path: str) -> None:
    session.remark("FlashAttention 3 was chosen; torch's flash attention is priced as version 2, which is slower")


def _no_kernels() -> None:
    return None
