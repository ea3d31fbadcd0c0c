"""Something to do before the script's init_process_group: in processes that join the run with it, or that are outside."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


def before_init_process_group(action: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
    """Call action(args, kwargs) before each init_process_group of this process. Once torch is imported; a second call
    changes nothing."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.init_process_group, "_phantora_original"):
        return
    original: Any = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        action(args, kwargs)
        return original(*args, **kwargs)

    init_process_group._phantora_original = original  # type: ignore[attr-defined]
    dist.init_process_group = init_process_group
    sys.modules["torch.distributed.distributed_c10d"].init_process_group = init_process_group  # type: ignore[attr-defined]
