"""DeepSpeed ZeRO on eight square layers. deepspeed --num_gpus 2 deepspeed_train.py --stage 3"""

import argparse
import os

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--steps", type=int, default=2)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--reduce-to-owners", action="store_true")
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--optimizer", default="AdamW")
parser.add_argument("--offload", action="store_true")
parser.add_argument("--fp16", action="store_true")
parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
options = parser.parse_args()

WIDTH, LAYERS = options.width, 8
deepspeed.init_distributed()
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": options.accumulate,
    "optimizer": {"type": options.optimizer, "params": {"lr": 1e-4}},
    "bf16": {"enabled": not options.fp16},
    "fp16": {"enabled": options.fp16, "initial_scale_power": 16},
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": options.stage,
        "reduce_bucket_size": 4 * WIDTH * WIDTH,
        "allgather_bucket_size": 10**9,
        "overlap_comm": True,
        "use_multi_rank_bucket_allreduce": not options.reduce_to_owners,
        "contiguous_gradients": True,
        "stage3_param_persistence_threshold": 0,
        "stage3_max_reuse_distance": 0,
        "stage3_prefetch_bucket_size": 0,
        "stage3_max_live_parameters": 0,
    },
}
if options.offload:
    config["zero_optimization"]["offload_optimizer"] = {"device": "cpu", "pin_memory": True}


def build():
    return torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


if options.stage == 3:
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = build()
else:
    model = build()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for _ in range(options.steps * options.accumulate):
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("micro batch")
    x = torch.randn(4, WIDTH, device=engine.device, dtype=torch.float16 if options.fp16 else torch.bfloat16)
    loss = engine(x).float().pow(2).mean()
    engine.backward(loss)
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_push("update")
    engine.step()
    torch.cuda.synchronize()
    torch.cuda.nvtx.range_pop()
    torch.cuda.nvtx.range_pop()
print("loss scale", getattr(engine.optimizer, "cur_scale", 1), "loss", loss.item())
deepspeed.comm.destroy_process_group()
