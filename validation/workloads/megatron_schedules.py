"""Microbatches through a pipeline: 1F1B, and interleaved 1F1B over several chunks of a rank (Narayanan et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# forward(chunk, microbatch, input) -> output; the output of the last chunk is the loss
Forward = Callable[[int, int, "Tensor | None"], Tensor]


class Pipeline:
    """One rank's place: `group` holds the ranks of the pipeline in order. num_chunks: chunks of layers on each.

    sharers: ranks that hold the same activations (tensor parallelism); each sends its part of them to the next stage, which
    gathers the parts (scatter_gather_tensors_in_pipeline, Narayanan et al. 2021, section 4.1).
    """

    def __init__(
        self, group: Any, shape: tuple[int, ...], num_chunks: int, loss_scale: float, sharers: Any = None
    ) -> None:
        self.sharers = sharers
        self.group, self.shape, self.num_chunks, self.loss_scale = group, shape, num_chunks, loss_scale
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        ranks = dist.get_process_group_ranks(group)
        self.next, self.previous = ranks[(self.rank + 1) % self.size], ranks[(self.rank - 1) % self.size]

    def run(self, forward: Forward, num_microbatches: int) -> None:
        """All forward and backward passes of a step."""
        if self.size == 1:
            for microbatch in range(num_microbatches):
                self._backward(None, forward(0, microbatch, None), None)
        elif self.num_chunks == 1:
            self._one_forward_one_backward(forward, num_microbatches)
        else:
            self._interleaved(forward, num_microbatches)

    def _backward(self, source: Tensor | None, output: Tensor, grad: Tensor | None) -> Tensor | None:
        if grad is None:
            output = output * self.loss_scale
        torch.autograd.backward(output, grad)
        return None if source is None else source.grad

    def exchange(self, *, to_next: Tensor | None = None, to_previous: Tensor | None = None, from_next: bool = False,
                 from_previous: bool = False) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
        """(from the previous stage, from the next one), sends and receives as one batch."""
        incoming = [self._buffer() if wanted else None for wanted in (from_previous, from_next)]
        to_next, to_previous = self._part(to_next), self._part(to_previous)
        work = [
            dist.P2POp(operation, tensor, peer, self.group)
            for operation, tensor, peer in (
                (dist.isend, to_previous, self.previous), (dist.irecv, incoming[0], self.previous),
                (dist.isend, to_next, self.next), (dist.irecv, incoming[1], self.next),
            )
            if tensor is not None
        ]  # fmt: skip
        for request in dist.batch_isend_irecv(work) if work else ():
            request.wait()
        torch.cuda.synchronize()  # as p2p_communication.py does behind batch_isend_irecv
        return self._whole(incoming[0]), self._whole(incoming[1])

    def _buffer(self) -> Tensor:
        if self.sharers is None:
            return torch.empty(self.shape, dtype=torch.float16, device="cuda", requires_grad=True)
        return torch.empty(math.prod(self.shape) // self.sharers.size(), dtype=torch.float16, device="cuda")

    def _part(self, tensor: Tensor | None) -> Tensor | None:
        """What this rank sends of it."""
        if tensor is None or self.sharers is None:
            return tensor
        return tensor.detach().reshape(-1).chunk(self.sharers.size())[self.sharers.rank()]

    def _whole(self, part: Tensor | None) -> Tensor | None:
        if part is None or self.sharers is None:
            return part
        whole = part.new_empty(math.prod(self.shape))
        dist.all_gather_into_tensor(whole, part, group=self.sharers)
        return whole.view(self.shape).requires_grad_()

    def _one_forward_one_backward(self, forward: Forward, total: int) -> None:
        is_first, is_last = self.rank == 0, self.rank == self.size - 1
        warmup = min(self.size - 1 - self.rank, total)
        kept: list[tuple[Tensor | None, Tensor]] = []
        for microbatch in range(warmup):
            source, _ = self.exchange(from_previous=not is_first)
            kept.append((source, forward(0, microbatch, source)))
            self.exchange(to_next=kept[-1][1])
        steady = total - warmup
        source = self.exchange(from_previous=not is_first)[0] if steady else None
        for index in range(steady):
            output = forward(0, warmup + index, source)
            kept.append((source, output))
            _, grad = self.exchange(to_next=None if is_last else output, from_next=not is_last)
            passed = self._backward(*kept.pop(0), grad)
            more = index + 1 < steady
            source, _ = self.exchange(
                to_previous=None if is_first else passed, from_previous=more and not is_first
            )
        for _ in range(warmup):
            _, grad = self.exchange(from_next=True)
            passed = self._backward(*kept.pop(0), grad)
            self.exchange(to_previous=None if is_first else passed)

    def _interleaved(self, forward: Forward, num_microbatches: int) -> None:
        """Chunk c of rank r is stage c * size + r. Megatron's order: warm-up, pairs, the rest."""
        size, chunks, total = self.size, self.num_chunks, num_microbatches * self.num_chunks
        warmup = total if num_microbatches == size else min((size - self.rank - 1) * 2 + (chunks - 1) * size, total)
        sources: list[list[Tensor | None]] = [[] for _ in range(chunks)]
        outputs: list[list[Tensor]] = [[] for _ in range(chunks)]
        grads: list[list[Tensor | None]] = [[] for _ in range(chunks)]
        done = [0] * chunks

        def chunk_of(k: int, is_forward: bool) -> int:
            chunk = k % (size * chunks) // size
            return chunk if is_forward else chunks - 1 - chunk

        def do_forward(k: int) -> Tensor | None:
            chunk = chunk_of(k, True)
            if self.rank == 0 and chunk == 0:
                sources[0].append(None)
            output = forward(chunk, done[chunk], sources[chunk][-1])
            done[chunk] += 1
            outputs[chunk].append(output)
            return None if self.rank == size - 1 and chunk == chunks - 1 else output

        def do_backward(k: int) -> Tensor | None:
            chunk = chunk_of(k, False)
            grad = None if self.rank == size - 1 and chunk == chunks - 1 else grads[chunk].pop(0)
            passed = self._backward(sources[chunk].pop(0), outputs[chunk].pop(0), grad)
            return None if self.rank == 0 and chunk == 0 else passed

        def comes_forward(k: int) -> int | None:
            """The chunk of this rank's k-th forward, when its input comes from another rank."""
            starts = self.rank == 0 and chunk_of(k, True) == 0
            return None if k >= total or starts else chunk_of(k, True)

        def comes_backward(k: int) -> int | None:
            """The chunk of this rank's k-th backward, when its gradient comes from another rank."""
            ends = self.rank == size - 1 and chunk_of(k, False) == chunks - 1
            return None if k >= total or ends else chunk_of(k, False)

        def swap(
            forward_out: Tensor | None, k_forward: int | None, backward_out: Tensor | None, k_backward: int | None
        ) -> None:
            into = None if k_forward is None else comes_forward(k_forward)
            back = None if k_backward is None else comes_backward(k_backward)
            activation, grad = self.exchange(
                to_next=forward_out,
                to_previous=backward_out,
                from_previous=into is not None,
                from_next=back is not None,
            )
            if into is not None:
                sources[into].append(activation)
            if back is not None:
                grads[back].append(grad)

        swap(None, 0, None, None)
        for k in range(warmup):
            output = do_forward(k)
            swap(output, k + 1, None, 0 if k == warmup - 1 else None)
        for k in range(total - warmup):
            output = do_forward(warmup + k)
            passed = do_backward(k)
            swap(output, warmup + k + 1, passed, k + 1)
        for k in range(total - warmup, total):
            passed = do_backward(k)
            swap(None, None, passed, k + 1)
