"""GPT-2 and Llama in plain PyTorch, small enough to read, with the real models' shapes. No dropout, random weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class GPT2Config:
    """GPT-2 124M by default."""

    vocab: int = 50257
    context: int = 1024
    hidden: int = 768
    layers: int = 12
    heads: int = 12


class GPT2Block(nn.Module):
    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.norm_attn = nn.LayerNorm(config.hidden)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.proj = nn.Linear(config.hidden, config.hidden)
        self.norm_mlp = nn.LayerNorm(config.hidden)
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        qkv = self.qkv(self.norm_attn(x)).view(batch, seq, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attn.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(F.gelu(self.up(self.norm_mlp(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Token ids (batch, seq) -> logits (batch, seq, vocab); the output layer shares the embedding's weights."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab, config.hidden)
        self.positions = nn.Embedding(config.context, config.hidden)
        self.blocks = nn.ModuleList(GPT2Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    rope_theta: float = 500000.0


LLAMA_CONFIGS = {
    "llama-1b": LlamaConfig(hidden=2048, ffn=8192, layers=16, heads=32, kv_heads=8, vocab=128256),
    "llama2-7b-8layers": LlamaConfig(hidden=4096, ffn=11008, layers=8, heads=32, kv_heads=32, vocab=32000),
    "llama-tiny": LlamaConfig(hidden=64, ffn=128, layers=2, heads=4, kv_heads=2, vocab=256),
}


def rotary(seq: int, head_dim: int, theta: float, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary position embedding, each (seq, head_dim)."""
    inv_freq = theta ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(seq, device=device, dtype=torch.float32), inv_freq).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn x (batch, heads, seq, head_dim) by its positions' angles."""
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-high, low), dim=-1) * sin


class LlamaAttention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.hidden // config.heads
        self.wq = nn.Linear(config.hidden, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.hidden, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        # -1 heads: under tensor parallelism each rank holds a part of them
        q, k, v = (w(x).view(batch, seq, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(attn.transpose(1, 2).reshape(batch, seq, -1))


class LlamaMLP(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm_attn = nn.RMSNorm(config.hidden, eps=1e-5)
        self.attn = LlamaAttention(config)
        self.norm_mlp = nn.RMSNorm(config.hidden, eps=1e-5)
        self.mlp = LlamaMLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attn(self.norm_attn(x), cos, sin)
        return x + self.mlp(self.norm_mlp(x))


class Llama(nn.Module):
    """A Llama, or one pipeline stage of it: layers [first, last), with embedding and head only at the two ends.

    Takes token ids (batch, seq) at the front, hidden states (batch, seq, hidden) elsewhere; returns logits at the end.
    """

    def __init__(self, config: LlamaConfig, first: int = 0, last: int | None = None) -> None:
        super().__init__()
        last = config.layers if last is None else last
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.hidden) if first == 0 else None
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(first, last))
        self.norm = nn.RMSNorm(config.hidden, eps=1e-5) if last == config.layers else None
        self.head = nn.Linear(config.hidden, config.vocab, bias=False) if last == config.layers else None

    def forward(self, x: Tensor) -> Tensor:
        config, seq = self.config, x.shape[1]
        dtype = self.blocks[0].norm_attn.weight.dtype
        cos, sin = rotary(seq, config.hidden // config.heads, config.rope_theta, x.device, dtype)
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x, cos, sin)
        return x if self.head is None else self.head(self.norm(x))


def init_weights(model: nn.Module) -> None:
    """Fill weights that were built on the meta device and moved with to_empty()."""
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.RMSNorm):
            nn.init.ones_(module.weight)


def next_token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in float32, as training scripts compute it."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
