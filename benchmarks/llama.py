"""A training step of the Llama-2-7B shape in plain PyTorch: `make(device)` -> step function. Used by several benchmarks."""

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH, HEADS, HIDDEN, LAYERS, VOCAB, LENGTH = 4096, 32, 11008, 32, 32000, 4096


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (w(y).view(batch, length, HEADS, -1).transpose(1, 2) for w in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.o(y)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def make(device):
    """The step function of a bf16 model with AdamW (fused) and clipping on `device`."""
    torch.set_default_dtype(torch.bfloat16)  # not model.bfloat16(): fake tensors cannot be swapped
    with torch.device(device):
        model = nn.Sequential(nn.Embedding(VOCAB, WIDTH), *(Layer() for _ in range(LAYERS)), nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step():
        ids = torch.randint(0, VOCAB, (1, LENGTH), device=device)
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
