"""Eight square layers in float32 with Adam, sharded by torch's own means. sharded_layers.py WAY [REPLICAS]

WAY: ddp (nothing sharded), keep (FSDP2, parameters kept after the forward pass), free (FSDP2, parameters gathered again
in the backward pass). With REPLICAS, FSDP2 shards among world size / REPLICAS ranks (HSDP).
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, BATCH, STEPS = 1024, 8, 4, 2
way, replicas = sys.argv[1], int((sys.argv[2:] or ["1"])[0])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False, device=device) for _ in range(LAYERS)])
if way == "ddp":
    model = DistributedDataParallel(model, device_ids=[device.index], gradient_as_bucket_view=True)
else:
    shape = (replicas, dist.get_world_size() // replicas) if replicas > 1 else (dist.get_world_size(),)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=way == "free")
    fully_shard(model, mesh=mesh, reshard_after_forward=way == "free")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
for _ in range(STEPS):
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("step")
    model(torch.randn(BATCH, WIDTH, device=device)).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("update")
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    optimizer.zero_grad()
    torch.cuda.nvtx.range_pop()
dist.destroy_process_group()
