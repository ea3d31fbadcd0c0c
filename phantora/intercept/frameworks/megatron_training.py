"""megatron.training imports typing.override, which Python has since 3.12; its wheel ships extensions for 3.11 all the
same."""

from __future__ import annotations

import typing


def before() -> None:
    if not hasattr(typing, "override"):
        from typing_extensions import override

        typing.override = override  # type: ignore[attr-defined, assignment]
