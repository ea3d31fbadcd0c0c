"""A Llama under tensor parallelism with sequence parallelism and a vocabulary-parallel loss; bf16 weights.

usage: torchrun --nproc-per-node 2 train_tp_llama.py --case tp2-llama-1b-b2-s4096
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import step_bench
from models import LLAMA_CONFIGS, Llama, next_token_loss


def apply_tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    """Megatron's scheme: activations between blocks are sharded along the sequence, within blocks along the features."""
    parallelize_module(model, mesh, {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    })
    for block in model.blocks:
        parallelize_module(block, mesh, {
            "norm_attn": SequenceParallel(),
            "attn": PrepareModuleInput(
                input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)
            ),
            "attn.wq": ColwiseParallel(),
            "attn.wk": ColwiseParallel(),
            "attn.wv": ColwiseParallel(),
            "attn.wo": RowwiseParallel(output_layouts=Shard(1)),
            "norm_mlp": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate": ColwiseParallel(),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        })


def main() -> None:
    parser = step_bench.arguments(__doc__)
    parser.set_defaults(batch=2, seq=4096)
    parser.add_argument("--model", choices=LLAMA_CONFIGS, default="llama-1b")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)  # all ranks see the same data

    config = LLAMA_CONFIGS[options.model]
    with device:
        model = Llama(config).to(torch.bfloat16)
    apply_tensor_parallel(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> float:
        inputs, labels = step_bench.batch_of_tokens(config.vocab, options.batch, options.seq)
        with loss_parallel():
            loss = next_token_loss(model(inputs), labels)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.full_tensor().item()

    tokens = options.batch * options.seq
    step_bench.measure(options, step, parameters=sum(p.numel() for p in model.parameters()), tokens_per_step=tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
