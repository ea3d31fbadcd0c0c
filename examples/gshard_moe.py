"""A mixture-of-experts transformer in the style of GShard (Lepikhin et al., 2021): every other layer's feed-forward
network is a set of experts spread over all ranks; each token goes to two of them (top-2 gating with a fixed capacity),
through two all-to-alls.

    torchrun --nproc-per-node 8 examples/gshard_moe.py
    phantora record-and-simulate --nproc-per-node 8 --cluster dgx-h100 examples/gshard_moe.py
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel


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


def top2_gating(logits, capacity):
    """Algorithm 1 of the paper: (slot, weight) of both choices of each token, each (tokens, 2), and the balancing loss.
    Slots are numbered through all experts; a choice beyond its expert's capacity has the slot after the last."""
    tokens, experts = logits.shape
    gates = logits.float().softmax(dim=-1)
    weights, chosen = gates.topk(2, dim=-1)
    weights = weights / weights.sum(dim=-1, keepdim=True)
    first = F.one_hot(chosen[:, 0], experts)
    balance = (first.float().mean(0) * gates.mean(0)).sum() * experts  # the paper's l_aux times E squared, as is usual
    one_hot = torch.cat((first, F.one_hot(chosen[:, 1], experts)))  # first choices take their places before second ones
    place = ((one_hot.cumsum(0) - 1) * one_hot).sum(-1).view(2, tokens).t()
    dispatched = place < capacity
    dispatched[:, 1] &= torch.rand_like(weights[:, 1]) < 2 * weights[:, 1]  # random routing of the second choice
    slot = torch.where(dispatched, chosen * capacity + place, experts * capacity)
    return slot, weights * dispatched, balance


class Experts(nn.Module):
    def __init__(self, width, hidden, experts, capacity_factor):
        super().__init__()
        self.experts, self.local, self.capacity_factor = experts, experts // dist.get_world_size(), capacity_factor
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(self.local, width, hidden) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(self.local, hidden, width) / math.sqrt(hidden))

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        capacity = math.ceil(2 * len(tokens) / self.experts * self.capacity_factor)
        slot, weight, balance = top2_gating(self.gate(tokens), capacity)
        sent = tokens.new_zeros(self.experts * capacity + 1, tokens.shape[-1])  # and one row for what no expert takes
        sent = sent.index_copy(0, slot.flatten(), tokens.repeat_interleave(2, dim=0))[:-1]
        world = self.experts // self.local
        mine = AllToAll.apply(sent).view(world, self.local, capacity, -1)  # by the rank that sent them
        mine = mine.transpose(0, 1).reshape(self.local, world * capacity, -1)
        done = torch.bmm(F.relu(torch.bmm(mine, self.up)), self.down)
        done = done.view(self.local, world, capacity, -1).transpose(0, 1).reshape(self.experts * capacity, -1)
        back = F.pad(AllToAll.apply(done), (0, 0, 0, 1))
        return (back[slot] * weight.to(back.dtype).unsqueeze(-1)).sum(1).view_as(x), balance


class Layer(nn.Module):
    def __init__(self, args, is_mixture):
        super().__init__()
        self.heads = args.heads
        self.norm1, self.norm2 = nn.LayerNorm(args.width), nn.LayerNorm(args.width)
        self.qkv, self.proj = nn.Linear(args.width, 3 * args.width), nn.Linear(args.width, args.width)
        if is_mixture:
            self.mlp = Experts(args.width, args.hidden, args.experts, args.capacity_factor)
        else:
            self.mlp = nn.Sequential(nn.Linear(args.width, args.hidden), nn.ReLU(), nn.Linear(args.hidden, args.width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width)).to(x.dtype)
        y = self.mlp(self.norm2(x).to(y.dtype))
        y, balance = y if isinstance(y, tuple) else (y, 0.0)
        return x + y.to(x.dtype), balance


class Model(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.tokens = nn.Embedding(args.vocab, args.width)
        self.layers = nn.ModuleList(Layer(args, is_mixture=i % 2 == 1) for i in range(args.layers))
        self.norm, self.head = nn.LayerNorm(args.width), nn.Linear(args.width, args.vocab, bias=False)

    def forward(self, ids):
        x, total = self.tokens(ids), 0.0
        for layer in self.layers:
            x, balance = layer(x)
            total = total + balance
        return self.head(self.norm(x)), total


def main():
    parser = argparse.ArgumentParser()
    sizes = dict(steps=5, batch=8, context=1024, width=1024, hidden=8192, heads=16, layers=12, experts=32, vocab=32000)
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--capacity-factor", type=float, default=1.0)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    world = dist.get_world_size()
    assert args.experts % world == 0, f"--experts {args.experts} is no multiple of the {world} ranks"
    torch.manual_seed(dist.get_rank())
    with torch.device("cuda"):
        model = Model(args)
    experts = [name for name, _ in model.named_parameters() if name.endswith(("mlp.up", "mlp.down"))]
    for name in experts:  # their gradients come from the tokens of all ranks already: a sum, where the others are means
        model.get_parameter(name).register_hook(lambda gradient: gradient / world)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, experts)
    trained = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for step in range(args.steps):
        started = time.perf_counter()
        ids = torch.randint(0, args.vocab, (args.batch, args.context + 1)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, balance = trained(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()) + 0.01 * balance
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if dist.get_rank() == 0:
            seconds, tokens = time.perf_counter() - started, args.batch * args.context * world
            print(f"step {step}: {seconds * 1e3:8.2f} ms  {tokens / seconds:10,.0f} tokens/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
