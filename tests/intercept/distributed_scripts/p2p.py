"""send, recv, batches, coalescing; subgroups and splits."""

import os

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dev = torch.device("cuda", local)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=dev if os.environ.get("EAGER") else None)
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
right, left = (rank + 1) % size, (rank - 1) % size

# ring of blocking calls
x = torch.tensor([rank], device=dev)
if rank == 0:
    dist.send(x, right)
    dist.recv(x, left)
    assert x.item() == sum(everyone), x
else:
    y = torch.empty_like(x)
    dist.recv(y, left)
    dist.send(x + y, right)

# ring of a batch; unknown data with it
got, blob = torch.empty(3, dtype=torch.int32, device=dev), torch.empty(1 << 16, device=dev)
ops = [
    dist.P2POp(dist.isend, torch.full((3,), rank, dtype=torch.int32, device=dev), right),
    dist.P2POp(dist.irecv, got, left),
    dist.P2POp(dist.isend, torch.randn(1 << 16, device=dev), left),
    dist.P2POp(dist.irecv, blob, right),
]
for work in dist.batch_isend_irecv(ops):
    work.wait()
assert got.tolist() == [left] * 3

# isend and irecv without a batch, several in flight
inbox = [torch.empty(1, dtype=torch.int64, device=dev) for _ in range(3)]
if rank % 2 == 0 and right != 0:
    works = [dist.isend(torch.tensor([10 * rank + i], device=dev), right) for i in range(3)]
elif rank % 2:
    works = [dist.irecv(box, left) for box in inbox]
else:
    works = []
for work in works:
    work.wait()
if rank % 2:
    assert [int(box) for box in inbox] == [10 * left + i for i in range(3)]

# objects
if rank == 0:
    dist.send_object_list([{"k": 5}, "text"], dst=1, device=dev)
elif rank == 1:
    objects = [None, None]
    dist.recv_object_list(objects, src=0, device=dev)
    assert objects == [{"k": 5}, "text"]

# coalescing: fast path (sync, async), and with a device
tensors = [torch.tensor([rank + i], device=dev) for i in range(3)]
with _coalescing_manager(async_ops=True) as manager:
    for tensor in tensors:
        dist.all_reduce(tensor)
manager.wait()
assert [int(t) for t in tensors] == [sum(everyone) + size * i for i in range(3)]
outputs = [torch.empty(size, dtype=torch.int64, device=dev) for _ in range(2)]
with _coalescing_manager():
    for i, output in enumerate(outputs):
        dist.all_gather_into_tensor(output, torch.tensor([rank * 10 + i], device=dev))
assert [o.tolist() for o in outputs] == [[10 * r + i for r in everyone] for i in range(2)]
outputs = [torch.empty(1, dtype=torch.int64, device=dev) for _ in range(2)]
with _coalescing_manager():
    for i, output in enumerate(outputs):
        dist.reduce_scatter_tensor(output, torch.arange(size, device=dev) + i)
assert [int(o) for o in outputs] == [size * (rank + i) for i in range(2)]
a, b = torch.tensor([rank], device=dev), torch.tensor([rank], device=dev)
with _coalescing_manager(device=dev, async_ops=True) as manager:
    dist.broadcast(a, src=0, async_op=True)
    dist.broadcast(b, src=1, async_op=True)
manager.wait()
assert (a.item(), b.item()) == (0, 1)

# subgroups, made by all and by members only
halves = [dist.new_group(everyone[: size // 2]), dist.new_group(everyone[size // 2 :])]
half = halves[0] if rank < size // 2 else halves[1]
members = everyone[: size // 2] if rank < size // 2 else everyone[size // 2 :]
x = torch.tensor([rank], device=dev)
dist.all_reduce(x, group=half)
assert x.item() == sum(members)
dist.broadcast(x, src=members[-1], group=half)
parity = dist.new_group([r for r in everyone if r % 2 == rank % 2], use_local_synchronization=True)
x = torch.tensor([rank], device=dev)
dist.all_reduce(x, group=parity)
assert x.item() == sum(r for r in everyone if r % 2 == rank % 2)
dist.barrier(group=parity)
dist.destroy_process_group(parity)

if os.environ.get("EAGER"):
    split = dist.split_group(split_ranks=[[r for r in everyone if r % 2 == p] for p in range(2)], group_desc="parity")
    x = torch.tensor([rank], device=dev)
    dist.all_reduce(x, group=split)
    assert x.item() == sum(r for r in everyone if r % 2 == rank % 2)
    assert dist.get_world_size(split) == size // 2 and split.group_desc == "parity"
    again = dist.split_group(split_ranks=[everyone[: size // 2], everyone[size // 2 :]])
    dist.all_reduce(x, group=again)
    host = torch.tensor([rank])
    dist.all_reduce(host, group=again)
    assert host.item() == sum(members)

mesh = dist.device_mesh.init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("outer", "inner"))
x = torch.tensor([rank], device=dev)
dist.all_reduce(x, group=mesh["inner"].get_group())
assert x.item() == sum(members)
outer = mesh["outer"].get_group()
dist.all_reduce(x, group=outer)
assert x.item() == sum(everyone)
dist.barrier()
dist.destroy_process_group()

# a second life of the same names
dist.init_process_group("nccl")
x = torch.tensor([rank], device=dev)
dist.all_reduce(x)
assert x.item() == sum(everyone)
dist.destroy_process_group()
print("done", flush=True)
