import os

import torch
import torch.distributed as dist


def start(backend="nccl", **kwargs):
    """(rank, world size, device) after init_process_group, as most scripts begin."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group(backend, **{"device_id": device, **kwargs})
    return dist.get_rank(), dist.get_world_size(), device


def finish(rank):
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("done", flush=True)
