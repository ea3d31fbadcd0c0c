"""Functional collectives, DTensor and the stores."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
everyone = list(range(size))
world = dist.group.WORLD

for dev in ("cuda", "cpu"):
    x = torch.tensor([rank, 1], device=dev)
    assert (funcol.all_reduce(x, "sum", world) + 0).tolist() == [sum(everyone), size]
    assert (funcol.all_reduce(x, "max", world) + 0).tolist() == [size - 1, 1]
    assert x.tolist() == [rank, 1]
    assert (funcol.all_gather_tensor(x, 0, world) + 0).tolist() == [v for r in everyone for v in (r, 1)]
    assert (funcol.reduce_scatter_tensor(torch.arange(size, device=dev), "sum", 0, world) + 0).tolist() == [size * rank]
    assert (funcol.broadcast(x, 1, world) + 0).tolist() == [1, 1]
    out = funcol.all_to_all_single(torch.arange(size, device=dev) + 10 * rank, None, None, world)
    assert (out + 0).tolist() == [10 * r + rank for r in everyone]
    outs = funcol.all_reduce_coalesced([x, 2 * x], "sum", world)
    assert [(o + 0).tolist() for o in outs] == [[sum(everyone), size], [2 * sum(everyone), 2 * size]]
    outs = funcol.all_gather_into_tensor_coalesced([x[:1], x[1:]], world)
    assert [(o + 0).tolist() for o in outs] == [everyone, [1] * size]
    outs = funcol.reduce_scatter_tensor_coalesced([torch.arange(size, device=dev)] * 2, "sum", [0, 0], world)
    assert [(o + 0).tolist() for o in outs] == [[size * rank]] * 2
    moved = funcol.permute_tensor(torch.tensor([rank], device=dev), [(r + 1) % size for r in everyone], world)
    assert (moved + 0).tolist() == [(rank - 1) % size]
    got = torch.empty(1, dtype=torch.int64, device=dev)
    peers = [(rank + 1) % size, (rank - 1) % size]
    sent = torch.tensor([rank], device=dev)
    results = funcol.batch_p2p_ops_inplace(["isend", "irecv"], peers, [0, 0], [sent, got], world)
    assert (results[1] + 0).tolist() == [(rank - 1) % size]
grad = torch.ones(2, device="cuda", requires_grad=True)
funcol.all_gather_tensor_autograd(grad, 0, world).sum().backward()
assert grad.grad.tolist() == [size, size]

mesh = dist.device_mesh.init_device_mesh("cuda", (size,))
whole = torch.arange(4 * size, device="cuda").view(size * 2, 2)
sharded = distribute_tensor(whole, mesh, [Shard(0)])
assert sharded.to_local().tolist() == whole[2 * rank : 2 * rank + 2].tolist()
assert sharded.redistribute(mesh, [Replicate()]).to_local().tolist() == whole.tolist()
if size == 2:
    assert sharded.redistribute(mesh, [Shard(1)]).full_tensor().tolist() == whole.tolist()
assert DTensor.from_local(torch.ones(1, device="cuda"), mesh, [Shard(0)]).sum().full_tensor().item() == size

# stores
store = dist.TCPStore("localhost", 12345, size, rank == 0, timeout=timedelta(seconds=1))
assert isinstance(store, dist.TCPStore) and isinstance(store, dist.Store) and store.port == 12345
if rank == 0:
    store.set("key", "value")
assert store.get("key") == b"value"
assert store.add("count", 2) in range(2, 2 * size + 1)
inner = dist.PrefixStore("a", dist.PrefixStore("b", store))
inner.set(f"r{rank}", str(rank))
inner.wait([f"r{r}" for r in everyone])
assert inner.multi_get([f"r{r}" for r in everyone]) == [str(r).encode() for r in everyone]
assert inner.check(["r0"]) and not inner.check(["nothing"])
assert store.get(f"b/a/r{rank}") == str(rank).encode()
dist.barrier()
assert store.add("count", 0) == 2 * size
if rank == 0:
    assert store.compare_set("lock", "", "mine") == b"mine"
    assert store.compare_set("lock", "other", "theirs") == b"mine"
    store.append("log", "a"), store.append("log", "b")
    assert store.get("log") == b"ab"
    assert store.delete_key("log") and not store.check(["log"])
    assert store.num_keys() == 3 + size, store.list_keys()
    store.queue_push("q", "first"), store.queue_push("q", "second")
    assert store.queue_len("q") == 2 and store.queue_pop("q") == b"first"
files = dist.FileStore(f"/tmp/never-made-{os.environ['MASTER_PORT']}", size)
files.set(f"k{rank}", "v")
files.wait([f"k{r}" for r in everyone])
assert not os.path.exists(files.path)
dist.barrier()
dist.destroy_process_group()
print("done", flush=True)
