"""A GPT trained with FSDP2 in bfloat16: plain PyTorch, as one runs it with torchrun on a cluster.

    torchrun --nproc-per-node 8 examples/train_gpt.py
    phantora record-and-simulate --nproc-per-node 8 --cluster dgx-h100 examples/train_gpt.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocab, context, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RandomTokens(Dataset):
    def __init__(self, vocab, context, size=100_000):
        self.vocab, self.context, self.size = vocab, context, size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        ids = torch.randint(0, self.vocab, (self.context + 1,), generator=torch.Generator().manual_seed(index))
        return ids[:-1], ids[1:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--batch", type=int, default=8, help="sequences per GPU")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=50304)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", local_rank)
    torch.manual_seed(0)

    with torch.device("meta"):
        model = GPT(args.vocab, args.context, args.width, args.heads, args.layers)
    mesh = init_device_mesh("cuda", (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)

    data = RandomTokens(args.vocab, args.context)
    sampler = DistributedSampler(data, world_size, rank)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, num_workers=2, pin_memory=True)

    if rank == 0:
        total = sum(p.numel() for p in model.parameters())
        print(f"{torch.cuda.get_device_name()} x {world_size}, {total / 1e9:.2f} G parameters")
    started = time.perf_counter()
    for step, (ids, targets) in zip(range(args.steps), loader):
        ids, targets = ids.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        value = loss.item()  # waits for the GPU, as most training loops do for their log
        now = time.perf_counter()
        seconds, started = now - started, now
        if rank == 0:
            tokens_per_s = args.batch * args.context * world_size / seconds
            print(f"step {step}: loss {value:.3f}  {seconds * 1e3:8.2f} ms  {tokens_per_s:10,.0f} tokens/s", flush=True)
    if rank == 0:
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB allocated")
    del norm
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
