"""Pipeline parallelism, 1F1B, shapes exchanged at run time."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import finish, start
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Stage(nn.Module):
    def __init__(self, first, last, width=128, vocab=500, layers=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width) if first else None
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        self.head = nn.Linear(width, vocab) if last else None

    def forward(self, x):
        x = self.embedding(x) if self.embedding is not None else x
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x) if self.head is not None else x


def main():
    rank, world_size, device = start(device_id=None)
    stage = PipelineStage(Stage(rank == 0, rank == world_size - 1).to(device), rank, world_size, device)
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten()))
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
    for _ in range(2):
        ids = torch.randint(0, 500, (16, 64), device=device)
        losses = []
        if rank == 0:
            schedule.step(ids)
        elif rank == world_size - 1:
            schedule.step(target=ids, losses=losses)
            assert len(losses) == 8
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
    finish(rank)


if __name__ == "__main__":
    main()
