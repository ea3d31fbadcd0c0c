"""DeepSpeed's pipeline module, its mixture of experts and Ulysses' attention. deepspeed_parallel.py
pipeline|moe|ulysses"""

import os
import sys

import deepspeed
import torch

WIDTH, LAYERS, BATCH, SEQUENCE, HEADS = 128, 4, 4, 64, 8
deepspeed.init_distributed()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}


def pipeline():
    from deepspeed.pipe import PipelineModule

    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    net = PipelineModule(layers=layers, num_stages=2, loss_fn=torch.nn.MSELoss(), partition_method="uniform")
    engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    data = [(torch.randn(BATCH, WIDTH, dtype=torch.bfloat16), torch.randn(BATCH, WIDTH, dtype=torch.bfloat16))] * 16
    for _ in range(2):
        engine.train_batch(iter(data))


def moe():
    from deepspeed.moe.layer import MoE

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = MoE(
                hidden_size=WIDTH,
                expert=torch.nn.Linear(WIDTH, WIDTH),
                num_experts=4,
                ep_size=2,
                k=1,
                capacity_factor=1.0,
                min_capacity=0,
            )

        def forward(self, x):
            return self.moe(x)[0]

    net = Net()
    groups = deepspeed.moe.utils.split_params_into_different_moe_groups_for_optimizer(
        {"params": list(net.parameters()), "name": "all"}
    )
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=groups, config={**config, "gradient_accumulation_steps": 1}
    )
    for _ in range(2):
        x = torch.randn(BATCH, SEQUENCE, WIDTH, device=engine.device, dtype=torch.bfloat16, requires_grad=True)
        engine.backward(engine(x).float().sum())
        engine.step()


def ulysses():
    from deepspeed.sequence.layer import DistributedAttention

    attention = DistributedAttention(
        torch.nn.functional.scaled_dot_product_attention, torch.distributed.group.WORLD, scatter_idx=1, gather_idx=2
    )
    q, k, v = (
        torch.randn(BATCH, HEADS, SEQUENCE // 2, 16, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )
    for _ in range(2):
        attention(q, k, v, batch_dim_idx=0).float().sum().backward()
    torch.cuda.synchronize()


{"pipeline": pipeline, "moe": moe, "ulysses": ulysses}[sys.argv[1]]()
deepspeed.comm.destroy_process_group()
