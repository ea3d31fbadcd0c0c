"""What cuDNN's recurrent layers allocate: one line of JSON for each layer.

usage: python recurrent_memory.py

reserve_bytes: what the forward pass keeps for the backward pass. forward_bytes, backward_bytes: peak of a pass above what
was allocated before and what it returns (cuDNN's workspace and copies).
"""

from __future__ import annotations

import itertools
import json

import torch

SHAPES = ((64, 64, 512, 512), (35, 32, 256, 384), (100, 8, 96, 200), (7, 3, 33, 65))  # steps, batch, input, units


def above_bytes(before: int) -> int:
    return torch.cuda.max_memory_allocated() - before


def measure(kind: str, dtype: torch.dtype, layers: int, bidirectional: bool, shape: tuple[int, int, int, int], training: bool) -> dict[str, object]:
    steps, batch, width, units = shape
    module = getattr(torch.nn, kind)(width, units, num_layers=layers, bidirectional=bidirectional, device="cuda", dtype=dtype)
    module.train(training)
    x = torch.randn(steps, batch, width, device="cuda", dtype=dtype, requires_grad=True)
    for _ in range(2):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.set_grad_enabled(training):
            output = module(x)[0]
        forward, kept = above_bytes(before), torch.cuda.memory_allocated() - before
        row = {
            "kind": kind, "dtype": str(dtype)[6:], "layers": layers, "bidirectional": bidirectional, "steps": steps, "batch": batch,
            "input": width, "hidden": units, "training": training, "forward_bytes": forward - kept, "kept_bytes": kept,
        }  # fmt: skip
        if training:
            node = output.grad_fn
            while node is not None and "CudnnRnn" not in node.name():
                node = node.next_functions[0][0]
            row["reserve_bytes"] = node._saved_result3.numel() if node is not None else None
            gradient = torch.randn_like(output)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            output.backward(gradient)
            row["backward_bytes"] = above_bytes(before)
            row["backward_kept_bytes"] = torch.cuda.memory_allocated() - before
            module.zero_grad()
            x.grad = None
            del node, gradient
        del output
    return row


def main() -> None:
    dtypes = (torch.float32, torch.float16, torch.bfloat16)
    kinds = ("LSTM", "GRU", "RNN")
    for kind, dtype, layers, both, shape in itertools.product(kinds, dtypes, (1, 2, 3), (False, True), SHAPES):
        for training in (True, False):
            if training or layers == 2:
                print(json.dumps(measure(kind, dtype, layers, both, shape, training)), flush=True)


if __name__ == "__main__":
    main()
