"""A Llama under FSDP2 (fully_shard): each block its own unit, built on the meta device.

By default the shards are float32, compute is bf16 and gradients are reduced in float32; --pure-bf16 makes all of it bf16.

usage: torchrun --nproc-per-node 2 train_fsdp_llama.py --case fsdp2-llama-1b --model llama-1b
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import step_bench
from models import LLAMA_CONFIGS, Llama, init_weights, next_token_loss


def main() -> None:
    parser = step_bench.arguments(__doc__)
    parser.set_defaults(batch=2, seq=4096)
    parser.add_argument("--model", choices=LLAMA_CONFIGS, default="llama-1b")
    parser.add_argument("--pure-bf16", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)  # one model

    config = LLAMA_CONFIGS[options.model]
    with torch.device("meta"):
        model = Llama(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if options.pure_bf16:
        model.to(torch.bfloat16)
        policy = MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    init_weights(model)
    torch.manual_seed(dist.get_rank())  # different data
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> float:
        inputs, labels = step_bench.batch_of_tokens(config.vocab, options.batch, options.seq)
        loss = next_token_loss(model(inputs), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    tokens = options.batch * options.seq * dist.get_world_size()
    step_bench.measure(options, step, parameters=sum(p.numel() for p in model.parameters()), tokens_per_step=tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
