"""Random states by name, checkpointing, and the collectives of tensor parallel layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.checkpoint import checkpoint as _checkpoint

_trackers: list["CudaRNGStatesTracker"] = []


class CudaRNGStatesTracker:
    """Named states of the GPU's random generator, one of which holds inside `fork`."""

    def __init__(self) -> None:
        self.states_: dict[str, Tensor] = {}
        self.seeds_: set[int] = set()
        _trackers.append(self)

    def reset(self) -> None:
        self.states_, self.seeds_ = {}, set()

    def get_states(self) -> dict[str, Tensor]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Tensor]) -> None:
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        if seed in self.seeds_ or name in self.states_:
            raise Exception(f"seed {seed} or name {name} already exists")
        self.seeds_.add(seed)
        saved = torch.cuda.get_rng_state()
        torch.cuda.manual_seed(seed)
        self.states_[name] = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(saved)

    @contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        if name not in self.states_:
            raise KeyError(f"cuda rng state {name} is not added")
        saved = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.cuda.get_rng_state()
            torch.cuda.set_rng_state(saved)


def get_all_rng_states() -> dict[int, CudaRNGStatesTracker]:
    return dict(enumerate(_trackers))


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool = False,
    get_rng_state_tracker: Any = None,
    tp_group: Any = None,
    context_fn: Any = None,
    determinism_check: str = "default",
    debug: bool = False,
    use_reentrant: bool = True,
    **kwargs: Any,
) -> Any:
    """Recompute `function` in the backward pass."""
    if distribute_saved_activations:
        raise NotImplementedError(
            "transformer_engine (stand-in of phantora): distribute_saved_activations is not modelled"
        )
    if use_reentrant:
        return _checkpoint(lambda *a: function(*a, **kwargs), *args, use_reentrant=True)
    return _checkpoint(function, *args, use_reentrant=False, **kwargs)


@contextmanager
def activation_recompute_forward(activation_recompute: bool = False, recompute_phase: bool = False) -> Iterator[None]:
    """A mark for FP8 scales, which are not computed."""
    yield


def is_fp8_activation_recompute_enabled() -> bool:
    return False


def in_fp8_activation_recompute_phase() -> bool:
    return False


def size_of(group: Any) -> int:
    return 1 if group is None else dist.get_world_size(group)


def gather_along_first_dim(tensor: Tensor, group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """[n, ...] of each rank -> [n * ranks, ...]"""
    if size_of(group) == 1:
        return tensor, None
    result = tensor.new_empty((tensor.shape[0] * size_of(group), *tensor.shape[1:]))
    return result, dist.all_gather_into_tensor(result, tensor.contiguous(), group=group, async_op=async_op)


def reduce_scatter_along_first_dim(tensor: Tensor, group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    """[n * ranks, ...] -> the sum's [n, ...] of this rank"""
    if size_of(group) == 1:
        return tensor, None
    result = tensor.new_empty((tensor.shape[0] // size_of(group), *tensor.shape[1:]))
    return result, dist.reduce_scatter_tensor(result, tensor.contiguous(), group=group, async_op=async_op)


def allreduce(tensor: Tensor, group: Any, async_op: bool = False) -> tuple[Tensor, Any]:
    if size_of(group) == 1:
        return tensor, None
    return tensor, dist.all_reduce(tensor, group=group, async_op=async_op)
