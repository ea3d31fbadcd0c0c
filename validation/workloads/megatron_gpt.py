"""GPT as Megatron-LM and Megatron-DeepSpeed trained it in 2022: fp16, recomputation, tensor and pipeline parallelism.

usage: torchrun --nnodes 8 --nproc-per-node 8 megatron_gpt.py --hidden 3072 --heads 32 --layers 30 --tp 2
       --micro-batch 8 --global-batch 512 --optimizer zero1
Rank 0 prints one JSON line: milliseconds of the last step, which follows a short one that fills the allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from megatron_layers import Chunk, ColumnParallel, GptConfig, RowParallel
from megatron_optimizers import MegatronOptimizer, ZeroOneOptimizer
from megatron_schedules import Pipeline
from torch import Tensor


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("hidden", "heads", "layers", "micro-batch", "global-batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name, value in {"seq": 2048, "vocab": 50257, "tp": 1, "pp": 1, "chunks": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--recompute", choices=("full", "selective", "none"), default="full")
    parser.add_argument("--optimizer", choices=("megatron", "zero1"), default="megatron")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--overlap", action="store_true", help="backward collectives beside weight gradients")
    parser.add_argument("--fused-accumulation", action="store_true", help="products add weight gradients to fp32 ones")
    parser.add_argument("--fast-layer-norm", action="store_true", help="apex's, as Megatron-LM; Megatron-DeepSpeed has none")
    return parser.parse_args()


class Groups:
    """Tensor-parallel neighbours, then data-parallel ranks, then stages: Megatron's order of ranks."""

    def __init__(self, tp: int, pp: int) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.dp = world // (tp * pp)
        everyone = torch.arange(world).view(pp, self.dp, tp)
        self.tensor = _mine(everyone.reshape(-1, tp), rank)
        self.data = _mine(everyone.transpose(1, 2).reshape(-1, self.dp), rank)
        self.pipe = _mine(everyone.permute(1, 2, 0).reshape(-1, pp), rank)
        self.model = _mine(everyone.permute(1, 0, 2).reshape(self.dp, -1), rank)
        # Last: the names of groups made by their members alone count those before, and some ranks are at no end.
        self.ends = _mine(everyone[[0, -1]].permute(1, 2, 0).reshape(-1, 2), rank) if pp > 1 else None
        self.is_end = rank in everyone[[0, -1]].flatten().tolist()


def _mine(rows: Tensor, rank: int) -> dist.ProcessGroup | None:
    """The group of this rank's row, made by its members alone."""
    for row in rows.tolist():
        if rank in row:
            return dist.new_group(row, use_local_synchronization=True)
    return None


class Training:
    """Model, data, schedule and optimizer of one rank."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.groups = options, Groups(options.tp, options.pp)
        names = ("hidden", "heads", "layers", "seq", "vocab", "tp", "overlap", "fast_layer_norm")
        shared = {name: getattr(options, name) for name in names}
        self.config = GptConfig(
            **shared, recompute=options.recompute, sequence_parallel=options.sequence_parallel, group=self.groups.tensor
        )
        stage, stages = dist.get_rank(self.groups.pipe), options.pp * options.chunks
        self.chunks = [
            Chunk(self.config, options.layers // stages, at == 0, at == stages - 1)
            for at in range(stage, stages, options.pp)
        ]
        shape = (options.seq // (options.tp if options.sequence_parallel else 1), options.micro_batch, options.hidden)
        self.num_microbatches = options.global_batch // (options.micro_batch * self.groups.dp)
        scale = 65536.0 / self.num_microbatches
        sharers = self.groups.tensor if options.tp > 1 and not options.sequence_parallel else None
        self.pipeline = Pipeline(self.groups.pipe, shape, options.chunks, scale, sharers)
        parameters = [p for chunk in self.chunks for p in chunk.parameters()]
        self.optimizer = (
            MegatronOptimizer(parameters, self.groups.model, self._fused() if options.fused_accumulation else ())
            if options.optimizer == "megatron"
            else ZeroOneOptimizer(parameters, self.groups.data, dist.group.WORLD)
        )
        self.norms = [p for chunk in self.chunks for name, p in chunk.named_parameters() if "layernorm" in name]

    def _fused(self) -> list[torch.nn.Parameter]:
        """Weights of the products whose backward pass is written out."""
        layers = [module for chunk in self.chunks for module in chunk.modules()]
        columns = [m.weight for m in layers if isinstance(m, ColumnParallel) and m.overlaps]
        return columns + [m.weight for m in layers if isinstance(m, RowParallel)]

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, labels and positions of a microbatch: from tensor-parallel rank 0, as broadcast_data does."""
        options, group = self.options, self.groups.tensor
        text = torch.zeros(options.micro_batch, options.seq + 1, dtype=torch.int64).cuda()
        if options.tp > 1:
            dist.broadcast(text, dist.get_process_group_ranks(group)[0], group=group)
        torch.tril(torch.ones(1, options.seq, options.seq, device="cuda")).view(1, 1, options.seq, options.seq) < 0.5
        positions = torch.arange(options.seq, device="cuda").unsqueeze(0).expand(options.micro_batch, -1)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous(), positions

    def forward(self, chunk: int, microbatch: int, source: Tensor | None) -> Tensor:
        return self.chunks[chunk](source, *self.batch())

    def step(self, num_microbatches: int) -> None:
        self.optimizer.zero_grad()
        self.pipeline.run(self.forward, num_microbatches)
        if self.config.sequence_parallel:
            self._sum_norm_gradients()
        if self.groups.ends is not None and self.groups.is_end:
            self._sum_word_gradients()
        self.optimizer.step()

    def _sum_norm_gradients(self) -> None:
        """Sequence-parallel ranks have seen different tokens: Megatron sums the norms' gradients in one buffer."""
        grads = [self._grad(p) for p in self.norms]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=self.groups.tensor)
        torch._foreach_copy_([grad.flatten() for grad in grads], list(flat.split([g.numel() for g in grads])))

    def _sum_word_gradients(self) -> None:
        """The first and the last stage hold the same words."""
        for chunk in self.chunks:
            if chunk.embedding is not None:
                dist.all_reduce(self._grad(chunk.embedding.word), group=self.groups.ends)

    def _grad(self, parameter: torch.nn.Parameter) -> Tensor:
        if parameter.grad is not None:
            return parameter.grad
        at = next(i for i, p in enumerate(self.optimizer.parameters) if p is parameter)
        return self.optimizer.main_grads[at]


def main() -> None:
    options = arguments()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        training = Training(options)
    training.step(min(training.num_microbatches, max(2, options.pp)))
    dist.barrier()
    torch.cuda.synchronize()
    start = time.perf_counter()
    training.step(training.num_microbatches)
    torch.cuda.synchronize()
    step_ms = (time.perf_counter() - start) * 1e3
    if dist.get_rank() == 0:
        peaks = {"max_reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2)}
        record = {"step_ms": round(step_ms, 3), "microbatches": training.num_microbatches, **peaks}
        print(json.dumps(record), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
