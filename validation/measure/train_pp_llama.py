"""A Llama as a pipeline, one stage a rank, under the 1F1B schedule; bf16 weights, one sequence a microbatch.

usage: torchrun --nproc-per-node 2 train_pp_llama.py --case pp2-llama-1b-m8-s4096
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import step_bench
from models import LLAMA_CONFIGS, Llama, next_token_loss


def main() -> None:
    parser = step_bench.arguments(__doc__)
    parser.set_defaults(batch=8, seq=4096)
    parser.add_argument("--model", choices=LLAMA_CONFIGS, default="llama-1b")
    parser.add_argument("--microbatches", type=int, default=8)
    options = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    rank, stages = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the first stage's inputs and the last one's labels come from the same tokens

    config = LLAMA_CONFIGS[options.model]
    with device:
        model = Llama(config, config.layers * rank // stages, config.layers * (rank + 1) // stages).to(torch.bfloat16)
    stage = PipelineStage(model, rank, stages, device)
    schedule = Schedule1F1B(stage, n_microbatches=options.microbatches, loss_fn=next_token_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> float | None:
        inputs, labels = step_bench.batch_of_tokens(config.vocab, options.batch, options.seq)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == stages - 1:
            schedule.step(target=labels, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).mean().item() if losses else None

    tokens = options.batch * options.seq
    step_bench.measure(options, step, parameters=sum(p.numel() for p in model.parameters()), tokens_per_step=tokens)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
