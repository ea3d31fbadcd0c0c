"""Stand-in for transformer_engine.pytorch."""

from transformer_engine.pytorch import attention, distributed, fp8, module, optimizers, tensor
from transformer_engine.pytorch.attention import DotProductAttention
from transformer_engine.pytorch.distributed import CudaRNGStatesTracker, checkpoint
from transformer_engine.pytorch.fp8 import fp8_autocast, fp8_model_init
from transformer_engine.pytorch.module import GroupedLinear, LayerNorm, LayerNormLinear, LayerNormMLP, Linear, RMSNorm

__all__ = [
    "CudaRNGStatesTracker",
    "DotProductAttention",
    "GroupedLinear",
    "LayerNorm",
    "LayerNormLinear",
    "LayerNormMLP",
    "Linear",
    "RMSNorm",
    "attention",
    "checkpoint",
    "distributed",
    "fp8",
    "fp8_autocast",
    "fp8_model_init",
    "module",
    "optimizers",
    "tensor",
]
