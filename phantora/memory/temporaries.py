"""Memory that CUDA operators take while they run and give back before they return, beside convolutions.

Only what is large: blocks that count for the peak of a training step. Read on an H200, torch 2.11
(validation/data/h200/memory.json); the formulas give those figures to 1 %. Left out: small buffers of sorts, scans and
reductions (below 1 MiB for 2^20 elements), index_put with accumulate (56 bytes for each index).
"""

from __future__ import annotations

from math import prod

_FLOAT_BYTES = 4
_INDEX_BYTES = 8
_ROWS_PER_THREAD = 10  # NROWS_PER_THREAD of aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu
_WITHOUT_SORT = 3072  # so many indices, at most, take the kernel without sorting (Embedding.cu)
_ATTENTION_TILE = 128  # flash: seqlen_q_rounded of flash_attn/flash_api.cpp; cuDNN's own is taken to be the same
_PER_CHAIN_BYTES = 8 << 20  # cuDNN, for each layer and direction
_LARGEST_SMALL_SORT = 4096  # elements of a row (aten/src/ATen/native/cuda/Sort.cpp)


def embedding_backward_bytes(num_indices: int, num_rows: int, row_length: int) -> int:
    """Partial sums of the gradient, in float32: at most one segment per index and one more for every ten."""
    if num_indices <= _WITHOUT_SORT:
        return 0
    segments = num_indices // _ROWS_PER_THREAD + min(num_indices, num_rows)
    return segments * row_length * _FLOAT_BYTES


def attention_backward_bytes(
    query: tuple[int, ...], key: tuple[int, ...], item_bytes: int, *, expands_groups: bool = True
) -> int:
    """query, key: (batch, heads, length, head dimension). The gradient of the query adds up in float32, in tiles of 128
    rows; with fewer heads in the keys, those of keys and values are made for every head of the query first
    (expands_groups)."""
    batch, heads, length, head_dim = query
    rows = batch * heads * -(-length // _ATTENTION_TILE) * _ATTENTION_TILE
    accumulated = rows * (head_dim + 1) * _FLOAT_BYTES
    is_grouped = expands_groups and key[1] != heads
    return accumulated + (2 * batch * heads * key[2] * head_dim * item_bytes if is_grouped else 0)


def recurrent_bytes(
    layer_bytes: int, weight_bytes: int, layers: int, directions: int, *, backward: bool, training: bool, walks_through_time: bool
) -> int:
    """cuDNN's workspace. layer_bytes: outputs of a layer, both directions; walks_through_time: one kernel for all steps, which torch asks for (families.rnn).

    Fitted on 270 layers (validation/data/h200/recurrent_memory.jsonl): 3 % in the median and 18 % at most while training,
    but for plain RNNs that walk through time (40 % too much).
    """
    workspace = layers * directions * _PER_CHAIN_BYTES + weight_bytes
    if not training:
        return workspace + 4 * layer_bytes
    return workspace + (22 if walks_through_time else (5 if backward else 6) + directions - 1) * layer_bytes


def sort_bytes(shape: tuple[int, ...], dimension: int, item_bytes: int) -> int:
    """A radix sort of one long row: indices to start from, and a second copy of keys and indices."""
    if not shape or shape[dimension] <= _LARGEST_SMALL_SORT or prod(shape) != shape[dimension]:
        return 0
    return prod(shape) * (2 * _INDEX_BYTES + item_bytes)
