"""DeepSpeed with one option at a time, on eight square layers. deepspeed_options.py OPTION"""

import os
import sys

import deepspeed
import torch

WIDTH, LAYERS, BATCH, STEPS = 256, 8, 4, 2
ZERO = {"stage3_param_persistence_threshold": 0, "reduce_bucket_size": 4 * WIDTH * WIDTH}
OPTIONS = {
    "offload_param": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True},
                      "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "hpz": {"stage": 3, "zero_hpz_partition_size": 2},
    "quantized_weights": {"stage": 3, "zero_quantized_weights": True},
    "quantized_gradients": {"stage": 3, "zero_quantized_gradients": True},
    "nvme": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}},
    
    "compile": {"stage": 1}, "compile_3": {"stage": 3},
    "checkpointing": {"stage": 2}, "sparse": {"stage": 0}, "lamb": {"stage": 0}, "save": {"stage": 3},
    "dynamic_scale": {"stage": 2}, "monitor": {"stage": 1},
}  # fmt: skip
option = sys.argv[1]
optimizer = {"lamb": "Lamb", "sparse": "SGD"}.get(option, "AdamW")
config = {
    "train_micro_batch_size_per_gpu": BATCH,
    "optimizer": {"type": optimizer, "params": {"lr": 1e-4}},
    "zero_optimization": {**ZERO, **OPTIONS[option]},
    "bf16": {"enabled": option not in ("sparse", "dynamic_scale", "lamb", "onebit")},
    "fp16": {"enabled": option in ("dynamic_scale", "lamb")},
    "wall_clock_breakdown": option == "monitor",
    "flops_profiler": {"enabled": option == "monitor", "profile_step": 1},
}
deepspeed.init_distributed()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        if option == "sparse":
            self.table = torch.nn.Embedding(1000, WIDTH, sparse=True)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))

    def forward(self, x):
        if option == "sparse":
            x = self.table(x)
        for layer in self.layers:
            x = deepspeed.checkpointing.checkpoint(layer, x) if option == "checkpointing" else layer(x)
        return x


if config["zero_optimization"]["stage"] == 3:
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = Net()
else:
    model = Net()
if option == "checkpointing":
    deepspeed.checkpointing.configure(None, partition_activations=False, contiguous_checkpointing=False)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
if option.startswith("compile"):
    engine.compile()
dtype = next(engine.module.parameters()).dtype
for _ in range(STEPS):
    if option == "sparse":
        x = torch.randint(0, 1000, (BATCH,), device=engine.device)
    else:
        x = torch.randn(BATCH, WIDTH, device=engine.device, dtype=dtype, requires_grad=True)
    engine.backward(engine(x).float().pow(2).mean())
    engine.step()
if option == "save":
    engine.save_checkpoint(os.environ["CHECKPOINTS"], tag="step")
    engine.load_checkpoint(os.environ["CHECKPOINTS"], tag="step")
torch.cuda.synchronize()
print("done")
deepspeed.comm.destroy_process_group()
