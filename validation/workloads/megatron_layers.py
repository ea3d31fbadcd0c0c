"""A GPT layer by layer as Megatron-LM of 2022 ran it: (sequence, batch, hidden) activations in fp16, fused softmax,
bias + GeLU and bias + dropout + residual, attention without flash kernels, tensor and sequence parallelism by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fused_kernels import BiasDropoutAdd, BiasGelu, CausalSoftmax, FastLayerNorm
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class GptConfig:
    """Sizes, and how the model is cut. overlap: collectives of a backward pass run beside its weight gradients.
    fast_layer_norm: apex's kernels."""

    hidden: int
    heads: int
    layers: int
    seq: int
    vocab: int
    tp: int
    recompute: str
    sequence_parallel: bool
    overlap: bool
    fast_layer_norm: bool
    group: Any = field(default=None)

    def norm(self, width: int) -> nn.LayerNorm:
        return FastLayerNorm(width) if self.fast_layer_norm else nn.LayerNorm(width)

    @property
    def vocab_share(self) -> int:
        """Rows of the embedding on a rank: padded to a multiple of 128 times tp, as Megatron does."""
        return -(-self.vocab // (128 * self.tp)) * 128


def gather(x: Tensor, config: GptConfig, async_op: bool = False) -> tuple[Tensor, Any]:
    """All ranks' parts of the sequence, one after the other."""
    out = x.new_empty((x.shape[0] * config.tp, *x.shape[1:]))
    return out, dist.all_gather_into_tensor(out, x.contiguous(), group=config.group, async_op=async_op)


def scatter_sum(x: Tensor, config: GptConfig, async_op: bool = False) -> tuple[Tensor, Any]:
    """This rank's part of the sequence, summed over ranks."""
    out = x.new_empty((x.shape[0] // config.tp, *x.shape[1:]))
    return out, dist.reduce_scatter_tensor(out, x.contiguous(), group=config.group, async_op=async_op)


class CopyToRegion(torch.autograd.Function):
    """Identity; the gradient is summed over the tensor-parallel group."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, config: GptConfig) -> Tensor:
        ctx.config = config
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.config.group)
        return grad, None


class ReduceFromRegion(torch.autograd.Function):
    """Sum over the group (in place); with sequence parallelism each rank keeps its part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, config: GptConfig) -> Tensor:
        ctx.config = config
        if config.sequence_parallel:
            return scatter_sum(x, config)[0]
        dist.all_reduce(x, group=config.group)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return (gather(grad, ctx.config)[0] if ctx.config.sequence_parallel else grad), None


def weight_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor | None:
    """The gradient of `weight` (out, in); None when the product itself adds it to the fp32 one (Megatron-LM's
    gradient_accumulation_fusion)."""
    left, right = grad.flatten(0, 1).t(), x.flatten(0, 1)
    main_grad = getattr(weight, "main_grad", None)
    if main_grad is None:
        return torch.matmul(left, right)
    torch.ops.aten.addmm.dtype_out(main_grad, left, right, torch.float32, out=main_grad)
    return None


class FusedLinear(torch.autograd.Function):
    """x times weight, whose gradient is accumulated by its own product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.matmul(x, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        return torch.matmul(grad, weight), weight_gradient(grad, x, weight)


class OverlappedLinear(torch.autograd.Function):
    """Column-parallel product whose collectives run beside the weight gradient (LinearWithGradAccumulation...)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, config: GptConfig) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.config = config
        whole = gather(x, config)[0] if config.sequence_parallel else x
        return torch.matmul(whole, weight.t())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        config, arrived = ctx.config, None
        if config.sequence_parallel:
            x, arrived = gather(x, config, async_op=True)
        grad_x = torch.matmul(grad, weight)
        if config.sequence_parallel:
            arrived.wait()
            grad_x, sent = scatter_sum(grad_x, config, async_op=True)
        else:
            sent = dist.all_reduce(grad_x, group=config.group, async_op=True)
        grad_weight = weight_gradient(grad, x, weight)
        sent.wait()
        return grad_x, grad_weight, None


class ColumnParallel(nn.Module):
    """Features are divided. The bias is added here only when `adds_bias`."""

    def __init__(self, config: GptConfig, inner: int, outer: int, adds_bias: bool) -> None:
        super().__init__()
        self.config, self.adds_bias = config, adds_bias
        self.overlaps = config.tp > 1 and config.overlap
        self.weight = nn.Parameter(torch.empty(outer // config.tp, inner))
        self.bias = nn.Parameter(torch.empty(outer // config.tp))

    def forward(self, x: Tensor) -> Tensor:
        bias = self.bias if self.adds_bias else None
        if self.overlaps:
            out = OverlappedLinear.apply(x, self.weight, self.config)
            return out if bias is None else out + bias
        if self.config.tp > 1:
            x = CopyToRegion.apply(x, self.config)
        return F.linear(x, self.weight, bias)


class RowParallel(nn.Module):
    """Inputs are divided; the sum over ranks comes without the bias."""

    def __init__(self, config: GptConfig, inner: int, outer: int) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(outer, inner // config.tp))
        self.bias = nn.Parameter(torch.empty(outer))

    def forward(self, x: Tensor) -> Tensor:
        out = FusedLinear.apply(x, self.weight)
        return ReduceFromRegion.apply(out, self.config) if self.config.tp > 1 else out


class SelfAttention(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config, self.heads = config, config.heads // config.tp
        self.query_key_value = ColumnParallel(config, config.hidden, 3 * config.hidden, adds_bias=True)
        self.dense = RowParallel(config, config.hidden, config.hidden)
        self.attention_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.query_key_value(x)
        seq, batch = mixed.shape[:2]
        width = self.config.hidden // self.config.heads
        query, key, value = mixed.view(seq, batch, self.heads, 3 * width).split(width, dim=-1)
        if self.config.recompute == "selective":
            context = checkpoint(self.core, query, key, value, use_reentrant=True)
        else:
            context = self.core(query, key, value)
        return self.dense(context)

    def core(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seq, batch, heads, width = query.shape
        query, key, value = (part.view(seq, batch * heads, width).transpose(0, 1) for part in (query, key, value))
        scores = torch.baddbmm(
            query.new_empty(batch * heads, seq, seq), query, key.transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(width)
        )
        probs = self.attention_dropout(CausalSoftmax.apply(scores))
        context = torch.bmm(probs, value).view(batch, heads, seq, width)
        return context.permute(2, 0, 1, 3).contiguous().view(seq, batch, heads * width)


class Mlp(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.dense_h_to_4h = ColumnParallel(config, config.hidden, 4 * config.hidden, adds_bias=False)
        self.dense_4h_to_h = RowParallel(config, 4 * config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense_4h_to_h(BiasGelu.apply(self.dense_h_to_4h(x), self.dense_h_to_4h.bias))


class Layer(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.input_layernorm = config.norm(config.hidden)
        self.attention = SelfAttention(config)
        self.post_attention_layernorm = config.norm(config.hidden)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention(self.input_layernorm(x))
        x = BiasDropoutAdd.apply(attended, self.attention.dense.bias, x)
        return BiasDropoutAdd.apply(self.mlp(self.post_attention_layernorm(x)), self.mlp.dense_4h_to_h.bias, x)


class Embedding(nn.Module):
    """Words (their rows divided over the group) and positions, then dropout."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.word = nn.Parameter(torch.empty(config.vocab_share, config.hidden))
        self.position = nn.Embedding(config.seq, config.hidden)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        words = F.embedding(tokens, self.word) if self.config.tp == 1 else self._divided(tokens)
        x = (words + self.position(positions)).transpose(0, 1).contiguous()
        if self.config.sequence_parallel:
            x = SplitSequence.apply(x, self.config)
        return self.dropout(x)

    def _divided(self, tokens: Tensor) -> Tensor:
        first = dist.get_rank(self.config.group) * self.config.vocab_share
        elsewhere = (tokens < first) | (tokens >= first + self.config.vocab_share)
        rows = F.embedding((tokens - first).masked_fill(elsewhere, 0), self.word)
        words = rows.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        return SumOverRanks.apply(words, self.config)


class SumOverRanks(torch.autograd.Function):
    """All-reduce of the divided embedding's output; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, config: GptConfig) -> Tensor:
        dist.all_reduce(x, group=config.group)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class SplitSequence(torch.autograd.Function):
    """This rank's part of the sequence; the gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, config: GptConfig) -> Tensor:
        ctx.config = config
        return x.chunk(config.tp)[dist.get_rank(config.group)].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return gather(grad, ctx.config)[0], None


class VocabParallelLoss(torch.autograd.Function):
    """Cross entropy in fp32 over logits whose vocabulary is divided; works in place, as Megatron's does."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, config: GptConfig) -> Tensor:
        highest = logits.max(dim=-1)[0]
        if config.tp > 1:
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=config.group)
        logits.sub_(highest.unsqueeze(-1))
        first = 0 if config.tp == 1 else dist.get_rank(config.group) * config.vocab_share
        elsewhere = (labels < first) | (labels >= first + config.vocab_share)
        local = (labels - first).masked_fill(elsewhere, 0)
        predicted = logits.gather(-1, local.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0.0)
        probs = logits.exp_()
        total = probs.sum(dim=-1)
        if config.tp > 1:
            dist.all_reduce(predicted, group=config.group)
            dist.all_reduce(total, group=config.group)
        probs.div_(total.unsqueeze(-1))
        ctx.save_for_backward(probs, elsewhere, local)
        return total.log() - predicted

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        probs, elsewhere, local = ctx.saved_tensors
        probs.scatter_add_(-1, local.unsqueeze(-1), elsewhere.unsqueeze(-1).float() - 1.0)
        return probs.mul_(grad.unsqueeze(-1)), None, None


class Chunk(nn.Module):
    """The layers of one pipeline stage (of one of its parts, when interleaved); embedding and loss at the ends."""

    def __init__(self, config: GptConfig, num_layers: int, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.config, self.is_first, self.is_last = config, is_first, is_last
        self.embedding = Embedding(config) if is_first or is_last else None
        if is_last and not is_first:
            del self.embedding.position  # the last stage has a copy of the words alone
        self.layers = nn.ModuleList(Layer(config) for _ in range(num_layers))
        self.final_layernorm = config.norm(config.hidden) if is_last else None

    def forward(self, x: Tensor | None, tokens: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
        """The activation for the next stage, or the mean loss."""
        if self.is_first:
            x = self.embedding(tokens, positions)
        for layer in self.layers:
            if self.config.recompute == "full":
                x = checkpoint(layer, x, use_reentrant=True)
            else:
                x = layer(x)
        return self._loss(self.final_layernorm(x), labels) if self.is_last else x

    def _loss(self, x: Tensor, labels: Tensor) -> Tensor:
        config = self.config
        if config.tp > 1 and config.overlap:
            logits = OverlappedLinear.apply(x, self.embedding.word, config)
        else:
            logits = F.linear(CopyToRegion.apply(x, config) if config.tp > 1 else x, self.embedding.word)
        losses = VocabParallelLoss.apply(logits.float(), labels.t().contiguous(), config)
        return losses.mean()
