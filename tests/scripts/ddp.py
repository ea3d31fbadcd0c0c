"""DistributedDataParallel with object collectives."""

import torch
import torch.distributed as dist
from common import finish, start
from model import Decoder, batch, loss_of
from torch.nn.parallel import DistributedDataParallel


def main():
    rank, world_size, device = start(device_id=None)
    model = DistributedDataParallel(Decoder().to(device), device_ids=[device.index])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        ids = batch(device)
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        mean.item()
    everyone = [None] * world_size
    dist.all_gather_object(everyone, {"rank": rank, "text": "x" * 1000 * rank})
    assert [entry["rank"] for entry in everyone] == list(range(world_size))
    told = [{"from": 0, "numbers": list(range(50))} if rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    assert told[0]["numbers"][-1] == 49
    finish(rank)


if __name__ == "__main__":
    main()
