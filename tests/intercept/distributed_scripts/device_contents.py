"""Every collective of the nccl backend with known contents."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dev = torch.device("cuda", torch.cuda.current_device())
everyone = list(range(size))


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=dev)


def same(tensor, expected):
    got = tensor.tolist()
    assert got == expected, f"rank {rank}: {got} instead of {expected}"


# all_reduce, every operator, sync and async
x = ints(rank + 1, rank)
dist.all_reduce(x)
same(x, [sum(r + 1 for r in everyone), sum(everyone)])
for op, expected in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1)):
    x = ints(rank + 1)
    work = dist.all_reduce(x, op=op, async_op=True)
    work.wait()
    same(x, [expected])
x = ints(rank + 1)
dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
product = 1
for r in everyone:
    product *= r + 1
same(x, [product])
x = ints(1 << rank, dtype=torch.int32)
dist.all_reduce(x, op=dist.ReduceOp.SUM)
same(x, [(1 << size) - 1])
x = torch.tensor([float(rank)], device=dev)
dist.all_reduce(x, op=dist.ReduceOp.AVG)
same(x, [sum(everyone) / size])
x = torch.tensor([rank == 0, True, False], device=dev)
dist.all_reduce(x)
same(x, [True, True, False])
x = torch.tensor([1.5, 2.0], device=dev, dtype=torch.bfloat16)
dist.all_reduce(x)
same(x, [1.5 * size, 2.0 * size])

# unknown contents stay unknown and do no harm
big = torch.randn(1 << 20, device=dev)
dist.all_reduce(big)

# in place on views, chained, then read
flat = torch.zeros(8, dtype=torch.int64, device=dev)
flat[2:4] = rank
dist.all_reduce(flat[2:4])
flat += 1
dist.all_reduce(flat[:3])
same(flat, [size, size, size * (sum(everyone) + 1), sum(everyone) + 1, 1, 1, 1, 1])

# broadcast and reduce
x = ints(rank, rank * 10)
dist.broadcast(x, src=1)
same(x, [1, 10])
x = ints(rank)
dist.reduce(x, dst=0)
if rank == 0:
    same(x, [sum(everyone)])

# all_gather: list, one tensor, uneven, coalesced
outputs = [torch.zeros(2, dtype=torch.int64, device=dev) for _ in everyone]
dist.all_gather(outputs, ints(rank, -rank))
for r in everyone:
    same(outputs[r], [r, -r])
output = torch.empty(2 * size, dtype=torch.int64, device=dev)
dist.all_gather_into_tensor(output, ints(rank, rank + 100))
same(output, [v for r in everyone for v in (r, r + 100)])
outputs = [torch.zeros(r + 1, dtype=torch.int64, device=dev) for r in everyone]
dist.all_gather(outputs, torch.full((rank + 1,), rank, dtype=torch.int64, device=dev))
for r in everyone:
    same(outputs[r], [r] * (r + 1))

# reduce_scatter: list, one tensor, uneven
output = ints(0)
dist.reduce_scatter(output, [ints(r + rank) for r in everyone])
same(output, [size * rank + sum(everyone)])
output = ints(0, 0)
dist.reduce_scatter_tensor(output, torch.arange(2 * size, device=dev) + rank)
same(output, [size * 2 * rank + sum(everyone), size * (2 * rank + 1) + sum(everyone)])
output = torch.zeros(rank + 1, dtype=torch.int64, device=dev)
dist.reduce_scatter(output, [torch.full((r + 1,), r, dtype=torch.int64, device=dev) for r in everyone])
same(output, [rank * size] * (rank + 1))

# gather, scatter
outputs = [torch.zeros(1, dtype=torch.int64, device=dev) for _ in everyone] if rank == 2 % size else None
dist.gather(ints(rank * 3), outputs, dst=2 % size)
if outputs:
    assert [int(t) for t in outputs] == [3 * r for r in everyone]
output = ints(0, 0)
dist.scatter(output, [ints(r, r * r) for r in everyone] if rank == 0 else None, src=0)
same(output, [rank, rank * rank])

# all_to_all: even, uneven (counts first, as mixture-of-experts layers do), list
output = torch.empty(size, dtype=torch.int64, device=dev)
dist.all_to_all_single(output, torch.arange(size, device=dev) + 10 * rank)
same(output, [10 * r + rank for r in everyone])
counts = torch.tensor([(rank + r) % 3 for r in everyone], device=dev)
received = torch.empty_like(counts)
dist.all_to_all_single(received, counts)
same(received, [(r + rank) % 3 for r in everyone])
send, recv = counts.tolist(), received.tolist()
rows = torch.full((sum(send), 2), rank, dtype=torch.int64, device=dev)
arrived = torch.empty((sum(recv), 2), dtype=torch.int64, device=dev)
dist.all_to_all_single(arrived, rows, recv, send)
same(arrived[:, 0], [r for r in everyone for _ in range(recv[r])])
tokens = torch.randn(sum(send), 64, device=dev)  # unknown
dist.all_to_all_single(torch.empty(sum(recv), 64, device=dev), tokens, recv, send)
outputs = [torch.zeros(1, dtype=torch.int64, device=dev) for _ in everyone]
dist.all_to_all(outputs, [ints(100 * rank + r) for r in everyone])
for r in everyone:
    same(outputs[r], [100 * r + rank])

# objects of any size
gathered = [None] * size
dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (1 + 40_000 * rank)})
assert [(o["rank"], len(o["text"])) for o in gathered] == [(r, 1 + 40_000 * r) for r in everyone]
objects = [{"a": 1}, "b", [3]] if rank == 0 else [None] * 3
dist.broadcast_object_list(objects, src=0)
assert objects == [{"a": 1}, "b", [3]]
mine = [None]
dist.scatter_object_list(mine, [("to", r) for r in everyone] if rank == 0 else None, src=0)
assert mine == [("to", rank)]
collected = [None] * size if rank == 0 else None
dist.gather_object(("from", rank), collected, dst=0)
assert rank or collected == [("from", r) for r in everyone]

# work objects
x = torch.ones(1 << 22, device=dev)
work = dist.all_reduce(x, async_op=True)
assert not work.is_completed()
work.wait()
torch.cuda.synchronize()
assert work.is_completed()
future = dist.all_reduce(ints(rank), async_op=True).get_future()
doubled = future.then(lambda f: f.value()[0] * 2)
doubled.wait()
same(doubled.value(), [2 * sum(everyone)])

work = dist.barrier(async_op=True)
work.wait()
dist.barrier(device_ids=[dev.index])
dist.destroy_process_group()
print("done", flush=True)
