"""DotProductAttention: fused attention (priced as cuDNN's), with context parallelism where a group is given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from phantora.intercept.frameworks.fused_attention import FusedAttention, Kernel, PackedAttention
from transformer_engine.pytorch.attention import context_parallel
from transformer_engine.pytorch.distributed import size_of

_NAME = "transformer_engine::fused_attention"


class DotProductAttention(torch.nn.Module):
    """transformer_engine.pytorch.DotProductAttention. Formats sbhd, bshd and thd; masks with a shape of their own take
    no time."""

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: Any,
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.1,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: Any = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: Any = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.num_attention_heads, self.qkv_format, self.attn_mask_type = num_attention_heads, qkv_format, attn_mask_type
        self.attention_dropout, self.attention_type, self.layer_number = attention_dropout, attention_type, layer_number
        self.window_size, self.tp_group, self.tp_size = window_size, tp_group, tp_size
        self.get_rng_state_tracker, self.sequence_parallel = get_rng_state_tracker, sequence_parallel
        self.set_context_parallel_group(cp_group, cp_global_ranks, cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: Any, cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        self.cp_group, self.cp_global_ranks, self.cp_stream, self.cp_comm_type = (
            cp_group,
            cp_global_ranks,
            cp_stream,
            cp_comm_type,
        )

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        self.tp_group = tp_group

    def forward(
        self,
        query_layer: Tensor,
        key_layer: Tensor,
        value_layer: Tensor,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
        window_size: Any = None,
        **_: Any,
    ) -> Tensor:
        layout = qkv_format or self.qkv_format
        is_causal = "causal" in (attn_mask_type or self.attn_mask_type)
        kernel = Kernel(
            name=_NAME, backend="cudnn", is_causal=is_causal, dropout=self.attention_dropout if self.training else 0.0
        )
        forked = self.get_rng_state_tracker().fork() if kernel.dropout and self.get_rng_state_tracker else nullcontext()
        with forked:
            if layout == "thd":
                if size_of(self.cp_group) > 1:
                    raise NotImplementedError(
                        "context parallelism of packed sequences is not modelled (stand-in of phantora)"
                    )
                longest = (int(max_seqlen_q or query_layer.shape[0]), int(max_seqlen_kv or key_layer.shape[0]))
                out, _sums = PackedAttention.apply(query_layer, key_layer, value_layer, cu_seqlens_q, *longest, kernel)
                return out.flatten(-2)
            order = (1, 2, 0, 3) if layout == "sbhd" else (0, 2, 1, 3)
            query, key, value = (tensor.permute(order) for tensor in (query_layer, key_layer, value_layer))
            if size_of(self.cp_group) > 1:
                out = context_parallel.attention(
                    kernel, query, key, value, self.cp_group, self.cp_stream, self.cp_comm_type
                )
            else:
                out = FusedAttention.apply(query, key, value, kernel)[0]
            back = (2, 0, 1, 3) if layout == "sbhd" else (0, 2, 1, 3)
            return out.permute(back).flatten(-2)
