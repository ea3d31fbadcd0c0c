"""Asynchronous tensor parallelism by hand: torch's operators on symmetric memory, on a group of all ranks."""

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

ROWS, INNER, COLUMNS = 256, 512, 1024

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
name = dist.group.WORLD.group_name
options = {"dtype": torch.bfloat16, "device": "cuda"}

shard, weight = torch.randn(ROWS, INNER, **options), torch.randn(INNER, COLUMNS, **options)
gathered, (product,) = torch.ops.symm_mem.fused_all_gather_matmul(shard, [weight], 0, name)
assert gathered.shape == (size * ROWS, INNER) and product.shape == (size * ROWS, COLUMNS)

partial = torch.randn(size * ROWS, INNER, **options)
scattered = torch.ops.symm_mem.fused_matmul_reduce_scatter(partial, weight, "sum", 0, name)
assert scattered.shape == (ROWS, COLUMNS)

buffer = symmetric.empty(64, 64, dtype=torch.float32, device="cuda")
handle = symmetric.rendezvous(buffer, dist.group.WORLD)
assert symmetric.is_symm_mem_tensor(buffer) and not symmetric.is_symm_mem_tensor(shard)
assert symmetric.rendezvous(buffer, dist.group.WORLD) is handle and symmetric.rendezvous(shard, name) is None
peer = handle.get_buffer((rank + 1) % size, (64, 64), torch.float32)
own = handle.get_buffer(rank, (64, 64), torch.float32)
assert peer.device == own.device == buffer.device and own.data_ptr() == buffer.data_ptr()
mine = torch.zeros(64, 64, device="cuda")
mine[:32].copy_(peer.view(4096)[2048:].view(32, 64))  # a view of a peer's buffer is one as well
total = torch.ops.symm_mem.one_shot_all_reduce(buffer, "sum", name)
assert total.shape == buffer.shape
