"""How NCCL cuts a message into chunks, and what filling a pipeline of stages with the first of them costs.

A collective that passes chunks through k stages ends k - 1 chunk times after a single stage would have: the last stage
waits for the first chunk. NCCL takes smaller chunks for smaller messages (calcCollChunking in src/enqueue.cc), so this
cost grows with the size in steps: 61 us for an NVLS all-reduce of 64 MiB on eight H200s, 30 us for one of 16 MiB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phantora.network import constants

ChunkRule = Callable[[int, int], int]
"""(bytes of the operation, chunks in flight at once) -> bytes of a chunk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A pipeline to be filled."""

    rule: ChunkRule
    num_concurrent: int
    """Chunks that one GPU has in flight at once: channels x heads."""
    ns_per_byte: float
    """Sum over the stages that wait of the time of one byte of the operation on that stage's links."""

    def fill_ns(self, num_bytes: int) -> float:
        """Time until the last stage has its first chunk; 0 for an operation without bytes."""
        in_flight_bytes = self.rule(num_bytes, self.num_concurrent) * self.num_concurrent
        return min(in_flight_bytes, num_bytes) * self.ns_per_byte


def nvls_chunk_bytes(num_bytes: int, num_concurrent: int) -> int:
    """Chunk of an NVLS collective."""
    chunk = constants.NVLS_CHUNK_BYTES
    for factor, smaller in ((64, 65_536), (8, 32_768), (2, 16_384)):
        if num_bytes < factor * num_concurrent * chunk:
            chunk = min(chunk, smaller)
    return chunk


def nvls_tree_chunk_bytes(num_bytes: int, num_concurrent: int) -> int:
    """Chunk of an NVLS tree over two or three domains."""
    return _nvls_tree_chunk_bytes(num_bytes, num_concurrent, constants.NVLS_CHUNK_BYTES)


def wide_nvls_tree_chunk_bytes(num_bytes: int, num_concurrent: int) -> int:
    """Chunk of an NVLS tree over four domains or more."""
    return _nvls_tree_chunk_bytes(num_bytes, num_concurrent, 65_536)


def _nvls_tree_chunk_bytes(num_bytes: int, num_concurrent: int, chunk: int) -> int:
    for factor, smaller in ((4, 65_536), (1, 32_768)):
        if num_bytes < factor * num_concurrent * chunk:
            chunk = min(chunk, smaller)
    return chunk


def tree_chunk_rule(depth: int) -> ChunkRule:
    """Chunk of a Simple tree of `depth` hops from leaf to root."""

    def rule(num_bytes: int, num_concurrent: int) -> int:
        chunk = constants.TREE_CHUNK_BYTES
        for factor, least in ((8, 131_072), (4, 65_536), (1, 32_768)):
            while num_bytes // (num_concurrent * chunk) < depth * factor and chunk > least:
                chunk //= 2
        return chunk

    return rule
