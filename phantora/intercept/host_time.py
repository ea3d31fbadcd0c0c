"""Host time of what is no call of the device: calls of modules and parameters of optimizers.

The other units are charged in native code: views, kept gradients (storage_kernels.cpp), operators inside __torch_dispatch__
(device.cpp), random numbers made by the CPU (cpu_random.cpp). Every unit is a count of something that the script does, never a measurement, so two runs are equal. Costs: HostSpec.unit_ns.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from phantora.engine.protocol import UNIT_KINDS

native: Any = sys.modules["phantora_native"]

_MODULE, _PARAMETER, _SUBCLASS = UNIT_KINDS["module"], UNIT_KINDS["parameter"], UNIT_KINDS["subclass"]
_PLAIN = (torch.nn.Parameter, torch.Tensor)


def install() -> None:
    """Once, at the end of `import torch`."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    _count_module_calls()
    register_optimizer_step_pre_hook(_count_parameters)


def _count_module_calls() -> None:
    """Around Module.__call__, and not a global hook: hooks make every call of every module take the slow path."""
    call: Any = torch.nn.Module.__call__
    charge = native.charge_units

    @functools.wraps(call)
    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        charge(_MODULE, 1)
        return call(self, *args, **kwargs)

    torch.nn.Module.__call__ = __call__  # type: ignore[method-assign]


def _count_parameters(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """A parameter of a subclass (DTensor) is unwrapped and wrapped once more by every operator on lists."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    native.charge_units(_PARAMETER, len(parameters))
    native.charge_units(_SUBCLASS, sum(type(parameter) not in _PLAIN for parameter in parameters))
