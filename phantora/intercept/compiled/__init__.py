"""torch.compile on the simulated device: Inductor runs as it is, and only Triton is missing.

Dynamo, AOTAutograd, Inductor's passes, its scheduler (fusion, memory planning, order) and its wrapper code are the
real ones, in this very process. What differs from a machine with a GPU:

| file                | what it does instead                                                                         |
|---------------------|----------------------------------------------------------------------------------------------|
| `codegen.py`        | a Triton kernel becomes a description (traffic, source, accesses) in the wrapper, not a binary |
| `fused_kernel.py`   | launching it: one priced launch (family 'fused'), results without known contents               |
| `runner.py`         | host time of a call of a compiled graph; CUDA graphs of mode="reduce-overhead"                 |
| `benchmarks.py`     | what Inductor decides by timing kernels is decided by their prices                             |
| `eager_fallback.py` | what cannot be compiled here runs as eager operators, and the report says so                   |
| `caching.py`        | Inductor's caches on disk, apart from those of real GPUs                                       |
| `accounts.py`       | graphs, breaks and kernels for the report; compile time stays off the virtual clock            |

`install()` runs when torch._inductor.compile_fx has been imported, before anything is compiled. docs/compile.md
"""

from __future__ import annotations

from types import ModuleType

_is_installed = False


def follow_compilations(callback: ModuleType) -> None:
    """Once, when torch._dynamo.callback has been imported: what happens while something is compiled is not recorded."""
    from phantora.intercept.compiled import accounts

    accounts.install(callback)


def install(compile_fx: ModuleType) -> None:
    """Put the parts above in place, once. `compile_fx` is torch._inductor.compile_fx."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    from phantora.intercept.compiled import accounts, benchmarks, caching, codegen, eager_fallback, runner

    accounts.still_clocks()
    caching.install()
    codegen.install()
    benchmarks.install()
    runner.install(compile_fx)
    eager_fallback.install(compile_fx)
