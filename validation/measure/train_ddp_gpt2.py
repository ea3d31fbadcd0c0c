"""GPT-2 124M under DistributedDataParallel: bf16 autocast, AdamW, gradient clipping.

usage: torchrun --nproc-per-node 2 train_ddp_gpt2.py --case ddp2-gpt2-124m-b8-s1024
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import step_bench
from models import GPT2, GPT2Config, next_token_loss


def main() -> None:
    parser = step_bench.arguments(__doc__)
    parser.set_defaults(batch=8, seq=1024)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(dist.get_rank())

    config = GPT2Config()
    model = DistributedDataParallel(GPT2(config).to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> float:
        inputs, labels = step_bench.batch_of_tokens(config.vocab, options.batch, options.seq)
        with torch.autocast("cuda", dtype=torch.bfloat16):
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
