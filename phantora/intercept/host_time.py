"""Host time of what is no call of the device: calls of modules, parameters of optimizers, functional collectives.

The other units are charged in native code: views, kept gradients (storage_kernels.cpp), operators inside
__torch_dispatch__ (device.cpp), random numbers made by the CPU (cpu_random.cpp). Every unit is a count of something that
the script does, never a measurement, so two runs are equal. Costs: HostSpec.unit_ns; docs/host_time.md has their sources.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from phantora.engine.protocol import UNIT_KINDS

native: Any = sys.modules["phantora_native"]

_MODULE, _PARAMETER, _SUBCLASS = UNIT_KINDS["module"], UNIT_KINDS["parameter"], UNIT_KINDS["subclass"]
_PLACEMENT = UNIT_KINDS["placement"]
_PLAIN = (torch.nn.Parameter, torch.Tensor)


def install() -> None:
    """Once, at the end of `import torch`."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    _count_module_calls()
    register_optimizer_step_pre_hook(_count_parameters)


def _count_module_calls() -> None:
    """Around Module.__call__, and not a global hook: hooks make every call of every module take the slow path."""
    torch.nn.Module.__call__ = _charged(torch.nn.Module.__call__, _MODULE)  # type: ignore[method-assign]


def _count_parameters(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """A parameter of a subclass (DTensor) is unwrapped and wrapped once more by every operator on lists. Dynamo traces
    this hook: there it counts nothing."""
    if torch.compiler.is_compiling():
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    native.charge_units(_PARAMETER, len(parameters))
    native.charge_units(_SUBCLASS, sum(type(parameter) not in _PLAIN for parameter in parameters))


def count_functional_collectives(module: ModuleType) -> None:
    """After torch.distributed._functional_collectives was loaded. DTensors communicate through it, and what surrounds each
    of these collectives (the change of placements, the asynchronous result) costs far more than its launch. Each wraps its
    result once; redistributions that do not communicate cost next to nothing."""
    module._maybe_wrap_tensor = _charged(module._maybe_wrap_tensor, _PLACEMENT)  # type: ignore[attr-defined]


def _charged(function: Any, kind: int) -> Any:
    """`function` with one unit more. Dynamo sees no trace of it: there, is_compiling() is a constant."""
    charge, is_compiling = native.charge_units, torch.compiler.is_compiling

    @functools.wraps(function)
    def charged(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            charge(kind, 1)
        return function(*args, **kwargs)

    return charged
