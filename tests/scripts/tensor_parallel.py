"""TP with sequence parallelism and loss_parallel (DTensor)."""

import torch
import torch.nn.functional as F
from common import finish, start
from model import Decoder
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module


def main():
    rank, world_size, device = start()
    mesh = init_device_mesh("cuda", (world_size,), mesh_dim_names=("tp",))
    with device:
        model = Decoder().bfloat16()
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        },
    )
    for layer in model.layers:
        plan = {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "attention": gather, "mlp": gather}
        plan |= {f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")}
        plan |= {"attention.wo": RowwiseParallel(output_layouts=Shard(1)), "mlp.w1": ColwiseParallel(), "mlp.w3": ColwiseParallel()}
        plan["mlp.w2"] = RowwiseParallel(output_layouts=Shard(1))
        parallelize_module(layer, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        ids = torch.randint(0, 1024, (2, 128), device=device)
        with loss_parallel():
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        (loss.full_tensor() if isinstance(loss, DTensor) else loss).item()
        (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
    whole = distribute_tensor(torch.arange(64.0, device=device).view(8, 8), mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()
    assert whole.shape == (8, 8)
    finish(rank)


if __name__ == "__main__":
    main()
