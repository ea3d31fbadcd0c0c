"""Taking the padding out of a batch and putting it back, in torch's own operators."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def index_first_axis(tensor: Tensor, indices: Tensor) -> Tensor:
    return tensor.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, length: int) -> Tensor:
    return values.new_zeros((length, *values.shape[1:])).index_copy(0, indices, values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None) -> tuple[Any, ...]:
    """(tokens, their indices, starts of the sequences, the greatest length, lengths that count)"""
    mask = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths, used = mask.sum(dim=-1, dtype=torch.int32), attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(mask.flatten(), as_tuple=False).flatten()
    starts = F.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, starts, int(lengths.max().item()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
