"""DeepSpeed's quantizer (ZeRO++: weights gathered in 8 bits, gradients exchanged in 4): shapes and launches of its kernels.

Shapes: deepspeed/ops/csrc/quantization/pt_binding.cpp of DeepSpeed 0.19. Every kernel is priced by the bytes that it
reads and writes, a guess. Values are not computed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from phantora.intercept.custom_ops import launch_foreign


class Quantizer:
    """deepspeed.ops.quantizer_op. Integers travel as int8, two of 4 bits in one; scales are float32, one for each group
    (and an offset, when asymmetric)."""

    Symmetric, Asymmetric = "symmetric", "asymmetric"

    @staticmethod
    def quantize(values: Tensor, groups: int, num_bits: int, kind: str) -> list[Tensor]:
        """[integers of the shape of `values`, the last dimension halved for 4 bits; scales]"""
        packed = torch.empty(_packed(values.shape, num_bits), dtype=torch.int8, device=values.device)
        return _launch("quantize", [values], [packed, _scales(groups, kind, values)])

    @staticmethod
    def dequantize(packed: Tensor, scales: Tensor, groups: int, num_bits: int, kind: str) -> Tensor:
        return _unpacked("dequantize", packed, scales, num_bits, torch.float16)

    @staticmethod
    def dequantize_fp32(packed: Tensor, scales: Tensor, groups: int, num_bits: int, kind: str) -> Tensor:
        return _unpacked("dequantize", packed, scales, num_bits, torch.float32)

    @staticmethod
    def swizzle_quant(
        values: Tensor, groups: int, num_bits: int, kind: str, pipeline_size: int, nodes: int, devices_per_node: int
    ) -> list[Tensor]:
        """[integers in the order in which the two all-to-alls send them, flat; scales]"""
        packed = torch.empty(values.numel() // (8 // num_bits), dtype=torch.int8, device=values.device)
        return _launch("swizzle_quant", [values], [packed, _scales(groups, kind, values)])

    @staticmethod
    def quantized_reduction(
        packed: Tensor, scales: Tensor, in_groups: int, out_groups: int, num_bits: int, kind: str,
        devices_per_node: int,
    ) -> list[Tensor]:  # fmt: skip
        """[the sum over a node's devices, quantized again; scales]"""
        shape = (*packed.shape[:-1], packed.shape[-1] // devices_per_node)
        reduced = torch.empty(shape, dtype=torch.int8, device=packed.device)
        return _launch("quantized_reduction", [packed, scales], [reduced, _scales(out_groups, kind, packed)])


def _unpacked(name: str, packed: Tensor, scales: Tensor, num_bits: int, dtype: torch.dtype) -> Tensor:
    shape = (*packed.shape[:-1], packed.shape[-1] * (8 // num_bits))
    return _launch(name, [packed, scales], [torch.empty(shape, dtype=dtype, device=packed.device)])[0]


def _packed(shape: torch.Size, num_bits: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // (8 // num_bits))


def _scales(groups: int, kind: str, like: Tensor) -> Tensor:
    width = 2 if kind == Quantizer.Asymmetric else 1
    return torch.empty((groups, width), dtype=torch.float32, device=like.device)


def _launch(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    launch_foreign(f"deepspeed::{name}", inputs, outputs)
    return outputs
