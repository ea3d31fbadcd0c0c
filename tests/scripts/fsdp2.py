"""fully_shard from the meta device, bf16 policy, both backends, gradient norm of DTensors."""

import torch
import torch.distributed as dist
from common import finish, start
from model import Decoder, batch, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


def main():
    rank, world_size, device = start("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (world_size,), mesh_dim_names=("dp",))
    with torch.device("meta"):
        model = Decoder()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device=device)
    model.reset()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        ids = batch(device)
        loss = loss_of(model(ids), ids)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        total.item(), norm.full_tensor().item()
    on_cpu = torch.tensor([rank])
    dist.all_reduce(on_cpu)
    assert on_cpu.item() == sum(range(world_size))
    finish(rank)


if __name__ == "__main__":
    main()
