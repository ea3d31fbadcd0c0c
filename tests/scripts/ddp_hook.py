"""DDP: bf16 communication hook, static graph, ZeroRedundancyOptimizer, SyncBatchNorm, DistributedSampler, no_sync."""

import torch
import torch.nn as nn
from common import finish, start
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    rank, world_size, device = start()
    net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    net = nn.SyncBatchNorm.convert_sync_batchnorm(net).to(device)
    model = DistributedDataParallel(net, device_ids=[device.index], static_graph=True, gradient_as_bucket_view=True)
    model.register_comm_hook(None, bf16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)
    data = TensorDataset(torch.randn(32, 3, 32, 32), torch.arange(32) % 10)
    sampler = DistributedSampler(data, world_size, rank, shuffle=False)
    for images, labels in DataLoader(data, batch_size=4, sampler=sampler):
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    finish(rank)


if __name__ == "__main__":
    main()
