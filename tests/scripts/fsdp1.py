"""FullyShardedDataParallel with fp16, ShardedGradScaler and a full state dict."""

import functools

import torch
import torch.distributed as dist
from common import finish, start
from model import Block, Decoder, batch, loss_of
from torch.distributed.fsdp import FullStateDictConfig, MixedPrecision, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main():
    rank, _, device = start()
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    precision = MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16)
    model = FSDP(Decoder(), auto_wrap_policy=policy, mixed_precision=precision, device_id=device, use_orig_params=True, limit_all_gathers=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = ShardedGradScaler()
    for _ in range(3):
        ids = batch(device)
        scaler.scale(loss_of(model(ids), ids)).backward()
        scaler.unscale_(optimizer)
        model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True, rank0_only=True)):
        state = model.state_dict()
    assert len(state) == (len(list(Decoder().parameters())) if rank == 0 else 0)
    dist.barrier()
    finish(rank)


if __name__ == "__main__":
    main()
