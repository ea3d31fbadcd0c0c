"""Python that stands in for C++ kernels must be as opaque to Dynamo as those are.

While code runs that Dynamo compiled (after a graph break), it looks at every Python frame that begins, and would
trace and compile the simulated device's own. The code of kernels is therefore marked: skip it, and whatever it calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PACKAGE = "phantora.intercept."
# Functions that a compiled frame may begin with (wrappers around torch's own), which Dynamo must see.
_VISIBLE = ("host_time", "step_marks", "backward_fence", "patches", "boot", "clock_patches", "compiled")


def install() -> None:
    """Mark every function of the interception that has been imported by now."""
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    for name in sorted(sys.modules):
        is_ours = name.startswith(_PACKAGE) and name[len(_PACKAGE) :].split(".")[0] not in _VISIBLE
        for function in _functions(sys.modules[name]) if is_ours else ():
            for code in _codes(function.__code__):
                eval_frame.set_code_exec_strategy(code, strategy)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield value
        elif isinstance(value, type):
            yield from (member for member in map(_plain, vars(value).values()) if isinstance(member, FunctionType))


def _plain(member: Any) -> Any:
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of those defined inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
