"""deep_ep.Buffer: tokens go to the ranks of their experts, and come back. Sizes come from the real routing indices.

A token is sent once to each rank that holds one of its experts. That takes one all-to-all of the hidden states; indices
and weights of the experts travel with them. Times are those of NCCL's all-to-all of the same bytes, which DeepEP's
kernels beat on small messages: a guess. The low-latency kernels are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from deep_ep.events import Config, EventHandle, EventOverlap
from phantora.intercept import session
from phantora.intercept.custom_ops import launch_foreign


@dataclass
class _Handle:
    """How a dispatch went: tokens to and from each rank, and which."""

    sent: list[int]
    received: list[int]
    rows: Tensor
    num_tokens: int


class Buffer:
    """For one group of ranks."""

    num_sms = 20

    def __init__(
        self,
        group: Any,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        *_: Any,
        **__: Any,
    ) -> None:
        if low_latency_mode:
            raise NotImplementedError("deep_ep (stand-in of phantora): the low-latency kernels are not modelled")
        self.group, self.group_size, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.num_nvl_bytes, self.num_rdma_bytes = num_nvl_bytes, num_rdma_bytes
        session.remark("deep_ep: dispatch and combine take the time of NCCL's all-to-all of the same bytes (a guess)")

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        Buffer.num_sms = new_num_sms

    @staticmethod
    def capture() -> EventOverlap:
        return EventOverlap(EventHandle())

    @staticmethod
    def get_dispatch_config(num_ranks: int) -> Config:
        return Config()

    get_combine_config = get_dispatch_config

    def get_dispatch_layout(
        self, topk_idx: Tensor, num_experts: int, previous_event: Any = None, async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """(tokens per rank, per RDMA rank (None), per expert, [token, rank] mask, event)"""
        local = num_experts // self.group_size
        chosen = torch.zeros((topk_idx.shape[0], num_experts + 1), dtype=torch.int32, device=topk_idx.device)
        experts = torch.where(topk_idx >= 0, topk_idx, num_experts)
        chosen.scatter_(1, experts, 1)
        chosen = chosen[:, :num_experts]
        is_in_rank = chosen.view(-1, self.group_size, local).sum(-1) > 0
        event = EventOverlap(EventHandle() if async_finish else None)
        return is_in_rank.sum(0, dtype=torch.int32), None, chosen.sum(0, dtype=torch.int32), is_in_rank, event

    def dispatch(
        self,
        x: Any,
        handle: _Handle | None = None,
        num_tokens_per_rank: Tensor | None = None,
        num_tokens_per_rdma_rank: Any = None,
        is_token_in_rank: Tensor | None = None,
        num_tokens_per_expert: Tensor | None = None,
        topk_idx: Tensor | None = None,
        topk_weights: Tensor | None = None,
        expert_alignment: int = 1,
        num_worst_tokens: int = 0,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """(tokens, expert indices local to this rank (-1: not here), weights, tokens per local expert, handle,
        event)"""
        tensor = x[0] if isinstance(x, tuple) else x
        if isinstance(x, tuple):
            raise NotImplementedError("deep_ep (stand-in of phantora): FP8 dispatch is not modelled")
        if handle is not None:
            received = self._exchange(tensor.index_select(0, handle.rows), handle.sent, handle.received)
            return received, None, None, None, handle, self._event(async_finish)
        assert is_token_in_rank is not None and topk_idx is not None and num_tokens_per_expert is not None
        handle = self._plan(is_token_in_rank, tensor.shape[0])
        received = self._exchange(tensor.index_select(0, handle.rows), handle.sent, handle.received)
        indices = self._exchange(topk_idx.index_select(0, handle.rows), handle.sent, handle.received)
        weights = (
            None
            if topk_weights is None
            else self._exchange(topk_weights.index_select(0, handle.rows), handle.sent, handle.received)
        )
        local = num_tokens_per_expert.numel() // self.group_size
        here = indices - self.rank * local
        here = torch.where((here >= 0) & (here < local), here, -1)
        counts = [int((here == expert).sum()) for expert in range(local)]
        aligned = [-(-count // expert_alignment) * expert_alignment for count in counts]
        return received, here, weights, aligned, handle, self._event(async_finish)

    def combine(
        self,
        x: Tensor,
        handle: _Handle,
        topk_weights: Tensor | None = None,
        bias: Any = None,
        config: Any = None,
        previous_event: Any = None,
        async_finish: bool = False,
        allocate_on_comm_stream: bool = False,
    ) -> tuple[Any, ...]:
        """(sums of what each token's ranks returned, weights, event)"""
        returned = self._exchange(x, handle.received, handle.sent)
        out = x.new_empty((handle.num_tokens, *x.shape[1:]))
        launch_foreign("deep_ep::combine", [returned], [out])
        weights = None
        if topk_weights is not None:
            back = self._exchange(topk_weights, handle.received, handle.sent)
            weights = back.new_empty((handle.num_tokens, *back.shape[1:]))
            launch_foreign("deep_ep::combine_weights", [back], [weights])
        return out, weights, self._event(async_finish)

    def _plan(self, is_in_rank: Tensor, num_tokens: int) -> _Handle:
        """The counts that ranks tell one another; the host waits for them, as DeepEP's does."""
        counts = is_in_rank.sum(0, dtype=torch.int64)
        others = torch.empty_like(counts)
        dist.all_to_all_single(others, counts, group=self.group)
        rows = torch.nonzero(is_in_rank.t().contiguous())[:, 1]
        return _Handle(sent=counts.tolist(), received=others.tolist(), rows=rows, num_tokens=num_tokens)

    def _exchange(self, tensor: Tensor, sent: list[int], received: list[int]) -> Tensor:
        out = tensor.new_empty((sum(received), *tensor.shape[1:]))
        dist.all_to_all_single(out, tensor.contiguous(), received, sent, group=self.group)
        return out

    @staticmethod
    def _event(is_async: bool) -> EventOverlap:
        return EventOverlap(EventHandle() if is_async else None)
