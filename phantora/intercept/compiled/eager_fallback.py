"""What cannot be compiled on the simulated device runs as eager operators, and the report says so.

A failure inside Inductor is ours (a template that needs Triton, an operator without lowering here), not the
script's: the graph that Dynamo or AOTAutograd made is correct and is run operator by operator, unfused. What Dynamo
itself refuses (fullgraph=True on a graph break) stays the script's error.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from phantora.intercept import session
from phantora.intercept.compiled import accounts

# Products stay cuBLAS's: tuning would launch Triton templates and time them.
_PATCHES = {"max_autotune": False, "max_autotune_gemm": False, "max_autotune_pointwise": False, "cpp_wrapper": False}


def install(compile_fx: ModuleType) -> None:
    """Around Inductor's compilation of one AOTAutograd graph, and around that of a whole Dynamo graph."""
    module: Any = compile_fx
    module.compile_fx_inner = _guarded(module, module.compile_fx_inner)
    defaults = list(module.compile_fx.__defaults__ or ())
    original = module.compile_fx
    names = original.__code__.co_varnames[: original.__code__.co_argcount]
    position = names.index("inner_compile") - (len(names) - len(defaults))
    defaults[position] = module.compile_fx_inner
    original.__defaults__ = tuple(defaults)


def _guarded(compile_fx: Any, compile_inner: Callable[..., Any]) -> Callable[..., Any]:
    config = compile_fx.config

    @functools.wraps(compile_inner)
    def compile_or_run_eagerly(graph: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if any(getattr(config, name) for name in ("max_autotune", "max_autotune_gemm")):
            session.remark(
                "torch.compile: mode max-autotune is simulated with the products of the default mode, untuned"
            )
        untouched = copy.deepcopy(graph.graph)  # Inductor's passes rewrite the graph in place
        try:
            with config.patch(_PATCHES):
                return compile_inner(graph, example_inputs, *args, **kwargs)
        except Exception as error:
            if _is_the_scripts(error):
                raise
            accounts.counts["eager"] += 1
            session.remark(f"torch.compile: a graph runs as eager operators, unfused ({_first_line(error)})")
            return _eager(graph, untouched)

    return compile_or_run_eagerly


def _is_the_scripts(error: Exception) -> bool:
    """Errors that mean something to Dynamo or to the user: out of memory, restarts of the analysis, refusals."""
    import torch
    from torch._dynamo import exc

    return isinstance(error, (torch.OutOfMemoryError, exc.TorchDynamoException)) and not isinstance(
        error, exc.BackendCompilerFailed
    )


def _eager(module: Any, graph: Any) -> Any:
    from torch._functorch.aot_autograd import make_boxed_func
    from torch.fx import GraphModule

    return make_boxed_func(GraphModule(module, graph).forward)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0][:160]}"
