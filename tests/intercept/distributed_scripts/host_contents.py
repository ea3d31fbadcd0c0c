"""The gloo backend: real data on CPU tensors, and on CUDA tensors by way of the host."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("gloo", timeout=timedelta(seconds=5))
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
assert dist.get_backend() == "gloo"

generator = torch.Generator().manual_seed(rank)
x = torch.randn(1000, generator=generator, dtype=torch.float64)
expected = sum(torch.randn(1000, generator=torch.Generator().manual_seed(r), dtype=torch.float64) for r in everyone)
total = x.clone()
dist.all_reduce(total)
assert torch.equal(total, expected)
for op, value in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1)):
    t = torch.tensor([rank + 1])
    dist.all_reduce(t, op=op)
    assert t.item() == value
bits = torch.tensor([1 << rank])
dist.all_reduce(bits, op=dist.ReduceOp.BOR)
assert bits.item() == (1 << size) - 1
bits = torch.tensor([6 if rank else 3])
dist.all_reduce(bits, op=dist.ReduceOp.BAND)
assert bits.item() == 2

work = dist.all_reduce(t := torch.tensor([float(rank)]), async_op=True)
assert work.is_completed() and t.item() == sum(everyone)
work.wait()
work.wait()
works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3)]
for work in works:
    work.wait()
assert dist.all_reduce(torch.ones(2), async_op=True).get_future().wait()[0].tolist() == [size, size]

t = torch.tensor([rank, rank])
dist.broadcast(t, src=size - 1)
assert t.tolist() == [size - 1] * 2
t = torch.tensor([rank])
dist.reduce(t, dst=1)
assert rank != 1 or t.item() == sum(everyone)
outputs = [torch.zeros(2, dtype=torch.bfloat16) for _ in everyone]
dist.all_gather(outputs, torch.full((2,), rank, dtype=torch.bfloat16))
assert [o.tolist() for o in outputs] == [[r, r] for r in everyone]
output = torch.empty(size, 2)
dist.all_gather_into_tensor(output, torch.full((1, 2), float(rank)))
assert output[:, 1].tolist() == everyone
output = torch.empty(3)
dist.reduce_scatter_tensor(output, torch.arange(3.0 * size))
assert output.tolist() == [size * (3 * rank + i) for i in range(3)]
output = torch.empty(1)
dist.reduce_scatter(output, [torch.tensor([float(r)]) for r in everyone])
assert output.item() == size * rank
outputs = [torch.empty(1) for _ in everyone] if rank == 0 else None
dist.gather(torch.tensor([float(rank)]), outputs)
assert rank or [o.item() for o in outputs] == everyone
output = torch.empty(2, 2)
dist.scatter(output, [torch.full((2, 2), float(r)) for r in everyone] if rank == 0 else None)
assert output.tolist() == [[rank] * 2] * 2
output = torch.empty(size, dtype=torch.int64)
dist.all_to_all_single(output, torch.arange(size) + 10 * rank)
assert output.tolist() == [10 * r + rank for r in everyone]
counts = [(rank + r) % 3 for r in everyone]
arriving = [(r + rank) % 3 for r in everyone]
output = torch.empty(sum(arriving), dtype=torch.int64)
dist.all_to_all_single(output, torch.full((sum(counts),), rank), arriving, counts)
assert output.tolist() == [r for r in everyone for _ in range(arriving[r])]

right, left = (rank + 1) % size, (rank - 1) % size
t = torch.empty(1)
requests = [dist.isend(torch.tensor([float(rank)]), right, tag=3), dist.irecv(t, left, tag=3)]
for request in requests:
    request.wait()
assert t.item() == left
if rank == 0:
    dist.send(torch.tensor([42.0]), 1)
elif rank == 1:
    dist.recv(t, 0)
    assert t.item() == 42.0

objects = [None] * size
dist.all_gather_object(objects, "r" * rank)
assert objects == ["r" * r for r in everyone]
dist.barrier()
dist.monitored_barrier()

# a rank that comes later in virtual time is waited for
begin = time.perf_counter()
if rank == 1:
    time.sleep(2.5)
dist.barrier()
assert time.perf_counter() - begin >= 2.5

# CUDA tensors over gloo
t = torch.tensor([rank], device="cuda")
dist.all_reduce(t)
assert t.item() == sum(everyone)

# DDP of a CPU model: C++ waits for these works
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2, bias=False))
with torch.no_grad():
    model.module.weight.fill_(0.5)
model(torch.full((1, 4), float(rank))).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((2, 4), sum(everyone) / size)), model.module.weight.grad
dist.destroy_process_group()
print("done", flush=True)
