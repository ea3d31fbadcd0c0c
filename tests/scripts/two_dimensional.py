"""FSDP2 x TP mesh, expert-style token exchange with real counts, p2p batches, object collectives, split groups, checkpoint."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from common import finish, start
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def train(device):
    mesh = init_device_mesh("cuda", (2, dist.get_world_size() // 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)) for _ in range(3))).to(device)
    for block in model:
        parallelize_module(block, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.randn(8, 256, device=device)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model, mesh


def exchange_tokens(rank, world_size, device):
    experts = dist.new_group(list(range(world_size)))
    sent = torch.tensor([rank + 1] * world_size, device=device)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=experts)
    assert received.tolist() == list(range(1, world_size + 1))
    tokens = torch.empty(int(received.sum()), 64, device=device)
    dist.all_to_all_single(tokens, torch.randn(int(sent.sum()), 64, device=device), received.tolist(), sent.tolist(), group=experts)


def talk(rank, world_size, device, mesh):
    assert functional.all_reduce(torch.ones(4, device=device), "sum", mesh.get_group("tp")).shape == (4,)
    work = dist.all_reduce(torch.ones(1 << 20, device=device), async_op=True)
    work.wait()
    total = torch.tensor([rank], device=device)
    dist.all_reduce(total)
    assert total.item() == sum(range(world_size))
    gathered = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(world_size)]
    dist.all_gather(gathered, torch.tensor([rank], device=device))
    assert [tensor.item() for tensor in gathered] == list(range(world_size))
    half = dist.split_group(None, [list(range(world_size // 2)), list(range(world_size // 2, world_size))])
    assert dist.get_world_size(half) == world_size // 2
    dist.barrier(half)
    if rank == 0:
        dist.send_object_list([{"a": 1}], 1)
    elif rank == 1:
        got = [None]
        dist.recv_object_list(got, 0)
        assert got[0] == {"a": 1}
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    number = torch.empty(1, dtype=torch.long, device=device)
    batch = [dist.P2POp(dist.isend, torch.tensor([rank], device=device), right), dist.P2POp(dist.irecv, number, left)]
    for request in dist.batch_isend_irecv(batch):
        request.wait()
    assert number.item() == left
    mine = [None]
    dist.scatter_object_list(mine, [f"x{i}" for i in range(world_size)] if rank == 0 else None)
    assert mine == [f"x{rank}"]
    everyone = [None] * world_size if rank == 0 else None
    dist.gather_object(rank, everyone)
    assert rank or everyone == list(range(world_size))


def main():
    rank, world_size, device = start()
    model, mesh = train(device)
    exchange_tokens(rank, world_size, device)
    talk(rank, world_size, device, mesh)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert rank or len(full) == 12
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    dcp.save(get_model_state_dict(model), checkpoint_id=os.path.join(folder[0], "checkpoint"))
    finish(rank)


if __name__ == "__main__":
    main()
