"""A recommendation model in the style of Wukong (Zhang et al., 2024, 'Wukong: Towards a Scaling Law for Large-Scale
Recommendation', section 3): embeddings of sparse and dense features go through stacked layers of a factorization
machine block and a linear compression block. Each rank keeps a part of the embedding tables (indices and embeddings
travel by all-to-all); the rest is data parallel.

    torchrun --nproc-per-node 8 examples/wukong.py
    phantora record-and-simulate --nproc-per-node 8 --cluster dgx-h100 examples/wukong.py
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel


def mlp(*widths):
    """Linear layers with ReLU between them."""
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class AllToAll(torch.autograd.Function):
    """Part i of the first dimension goes to rank i; gradients take the same way back."""

    @staticmethod
    def forward(ctx, x):
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x)
        return received

    @staticmethod
    def backward(ctx, gradient):
        return AllToAll.apply(gradient.contiguous())


class ShardedEmbeddings(nn.Module):
    """`tables` tables over all ranks, table by table. Indices (batch, tables, pooling) -> embeddings (batch, tables,
    width).
    """

    def __init__(self, tables, rows, width):
        super().__init__()
        self.world = dist.get_world_size()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables // self.world))

    def forward(self, indices):
        batch, tables, pooling = indices.shape
        wanted = (
            indices.view(batch, self.world, -1, pooling).transpose(0, 1).contiguous()
        )  # (owner, batch, its tables, pooling)
        received = torch.empty_like(wanted)
        dist.all_to_all_single(received, wanted)
        asked = received.flatten(0, 1)  # the batches of all ranks, for the tables here
        pooled = torch.stack([bag(asked[:, i]) for i, bag in enumerate(self.bags)], dim=1)
        mine = AllToAll.apply(pooled.view(self.world, batch, len(self.bags), -1))
        return mine.transpose(0, 1).reshape(batch, tables, -1)


class WukongLayer(nn.Module):
    """X' = LN([FMB(X), LCB(X)] + X) on X of shape (batch, n, width), equations 1 to 4."""

    def __init__(self, n, width, rank, hidden):
        super().__init__()
        self.n_fm = n // 2  # embeddings that the factorization machine makes; the linear block makes the others
        self.project = nn.Parameter(torch.randn(n, rank) / n)  # Y of the optimized machine X (X^T Y), section 3.6
        self.fm = nn.Sequential(nn.LayerNorm(n * rank), *mlp(n * rank, hidden, self.n_fm * width))
        self.compress = nn.Parameter(torch.randn(n - self.n_fm, n) / n)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        interactions = x @ (x.transpose(1, 2) @ self.project)  # (batch, n, rank), in O(n rank width) for O(n n width)
        made = self.fm(interactions.flatten(1)).view(len(x), self.n_fm, -1)
        return self.norm(torch.cat((made, self.compress @ x), dim=1) + x)


class Wukong(nn.Module):
    def __init__(self, args):
        super().__init__()
        n = args.tables + args.dense_embeddings
        self.dense = mlp(args.dense, args.hidden, args.dense_embeddings * args.width)
        self.layers = nn.Sequential(*(WukongLayer(n, args.width, args.rank, args.hidden) for _ in range(args.layers)))
        self.top = mlp(n * args.width, args.hidden, 1)

    def forward(self, dense, embeddings):
        x = torch.cat((self.dense(dense).view(len(dense), -1, embeddings.shape[-1]), embeddings), dim=1)
        return self.top(self.layers(x).flatten(1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    sizes = dict(steps=5, batch=2048, tables=64, rows=1_000_000, pooling=4, width=128, dense=13, dense_embeddings=4)
    sizes |= dict(rank=24, hidden=2048, layers=8)
    for name, value in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    if args.tables % world:
        raise SystemExit(f"--tables {args.tables} is no multiple of the {world} ranks")
    torch.manual_seed(rank)
    with torch.device("cuda"):
        embeddings, model = ShardedEmbeddings(args.tables, args.rows, args.width), Wukong(args)
    trained = DistributedDataParallel(model, device_ids=[local_rank])
    dense_optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    table_optimizer = torch.optim.SGD(embeddings.parameters(), lr=0.1)
    for (
        parameter
    ) in embeddings.parameters():  # gradients are sums over the batches of all ranks, where the others are means
        parameter.register_hook(lambda gradient: gradient / world)
    for step in range(args.steps):
        started = time.perf_counter()
        dense = torch.randn(args.batch, args.dense).cuda()
        indices = torch.randint(0, args.rows, (args.batch, args.tables, args.pooling)).cuda()
        clicked = torch.randint(0, 2, (args.batch,)).float().cuda()
        sparse = embeddings(indices)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = trained(dense, sparse)
        loss = nn.functional.binary_cross_entropy_with_logits(logits.float(), clicked)
        loss.backward()
        for optimizer in (dense_optimizer, table_optimizer):
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        if rank == 0:
            seconds = time.perf_counter() - started
            print(f"step {step}: {seconds * 1e3:8.2f} ms  {args.batch * world / seconds:10,.0f} samples/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
