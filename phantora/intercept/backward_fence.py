"""Makes the end of a backward pass a definite point.

Autograd's device thread tells the caller that the pass is complete and only then drops its last references, so on a real machine
it is a matter of luck whether their memory is free before the caller allocates again. Here two runs must be equal: after each
pass, a second, empty pass is run on the same device thread. The thread takes it up when it is done with everything before
(torch/csrc/autograd/engine.cpp, Engine::thread_main: the task and its graph are dropped at the end of a turn of its loop).
The empty pass works on tensors without elements: it allocates and launches nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_graphs: dict[int, tuple[Tensor, Tensor]] = {}  # device -> (output, gradient) of its empty graph


class _Empty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        return None


def install() -> None:
    """Wrap the one function through which torch.autograd.backward and torch.autograd.grad run the engine."""
    import torch.autograd.graph

    run: Any = torch.autograd.graph._engine_run_backward

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        if not _is_nested():
            _fence()
        return result

    # Made now: later a dispatch mode of the script's would see it.
    _graphs.update((device, _make_graph(device)) for device in range(torch.cuda.device_count()))
    torch.autograd.graph._engine_run_backward = run_backward
    torch.autograd._engine_run_backward = run_backward  # type: ignore[attr-defined]


def _is_nested() -> bool:
    """Inside another pass (its own fence comes), or under a transform of torch.func (which would trace the fence)."""
    return torch._C._current_graph_task_id() != -1 or torch._C._functorch.peek_interpreter_stack() is not None


def _fence() -> None:
    output, gradient = _graphs[torch.cuda.current_device()]
    engine: Any = torch.autograd.Variable._execution_engine
    engine.run_backward((output,), (gradient,), True, False, (), allow_unreachable=True, accumulate_grad=True)


def _make_graph(device: int) -> tuple[Tensor, Tensor]:
    leaf = torch.empty(0, device=f"cuda:{device}", requires_grad=True)
    return _Empty.apply(leaf), torch.empty(0, device=f"cuda:{device}")
