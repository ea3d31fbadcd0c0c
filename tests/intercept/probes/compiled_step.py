"""Training steps of a small transformer. Argument: compiled | eager.

Prints the number of launches, the peak of memory in bytes and the host clock after the steps.
"""

import sys

import kernel_probe

kernel_probe.arm()

import torch
import torch.nn.functional as F
from kernel_probe import launches
from torch import nn
from transformer_block import Block

NATIVE = sys.modules["phantora_native"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(5000, 256), nn.Linear(256, 5000, bias=False)
        self.blocks = nn.Sequential(*(Block(256, 4) for _ in range(2)))

    def forward(self, ids):
        logits = self.head(self.blocks(self.tokens(ids)))
        return F.cross_entropy(logits.float().view(-1, 5000), ids.view(-1))


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
if sys.argv[1] == "compiled":
    model.compile()
for _ in range(3):
    ids = torch.zeros(8, 256, dtype=torch.int64, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(launches()), torch.cuda.max_memory_allocated(), NATIVE.now_ns())
