"""Coalescing regions: ncclGroupStart / ncclGroupEnd around several operations make one kernel of them.

Mirrors ProcessGroupNCCL::startCoalescing and ::endCoalescing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as _c10d

from phantora.intercept.distributed import groups, launches
from phantora.intercept.distributed.groups import Group


class Region:
    """What was issued since the region was opened."""

    def __init__(self) -> None:
        self.parts: list[launches.Part] = []
        self.device = 0
        self.stream = 0
        self.is_async = False
        self._tensors: list[Tensor] = []  # alive until the kernel has been launched and waited for

    def add(self, part: launches.Part, device: int, stream: int, async_op: bool, tensors: Sequence[Tensor]) -> None:
        self.parts.append(part)
        self.device, self.stream, self.is_async = device, stream, async_op
        self._tensors.extend(tensors)

    def launch(self, group: Group) -> Any:
        """Launch what was gathered; a boxed Work, or None when there is nothing to wait for."""
        if not self.parts:
            return None
        launches.launch(group.main, self.device, self.stream, self.parts)
        return launches.work(self.device, self.stream, [], self._tensors) if self.is_async else None


def start(group: Group) -> None:
    group.coalescing = Region()


def end(group: Group) -> Any:
    region, group.coalescing = group.coalescing, None
    return region.launch(group) if region is not None else None


def _start_coalescing(process_group: Any, device: Any) -> None:
    group = groups.named(process_group.group_name)
    if group is not None and torch.device(device).type == "cuda" and "nccl" in group.backends:
        start(group)


def _end_coalescing(process_group: Any, device: Any) -> Any:
    group = groups.named(process_group.group_name)
    boxed = end(group) if group is not None else None
    return None if boxed is None else _c10d.Work.unbox(boxed)  # type: ignore[attr-defined]


def _batch_p2p_ops(
    ops: list[str], peers: list[int], tags: list[int], tensors: list[Tensor], group_name: Any
) -> list[Tensor]:
    """_c10d_functional::batch_p2p_ops, which in C++ would open its region behind Python's back."""
    resolve: Any = _c10d._resolve_process_group
    process_group: Any = group_name if isinstance(group_name, _c10d.ProcessGroup) else resolve(group_name)
    device = tensors[0].device
    process_group._start_coalescing(device)
    works = []
    for op, peer, tag, tensor in zip(ops, peers, tags, tensors, strict=True):
        works.append((process_group.send if op == "isend" else process_group.recv)([tensor], peer, tag))
    whole = process_group._end_coalescing(device)
    for tensor, work in zip(tensors, works, strict=True):
        _c10d._register_work(tensor, whole or work)
    return tensors


_library: Any = None


def install() -> None:
    global _library
    base: Any = _c10d.ProcessGroup
    base._start_coalescing, base._end_coalescing = _start_coalescing, _end_coalescing
    _library = torch.library.Library("_c10d_functional", "IMPL")
    if hasattr(torch.ops._c10d_functional, "batch_p2p_ops"):
        for key in ("CUDA", "CPU"):
            _library.impl("batch_p2p_ops", _batch_p2p_ops, key)
