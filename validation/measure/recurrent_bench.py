"""Recurrent layers through cuDNN, forward and backward: one line of JSON for each layer.

usage: python recurrent_bench.py                   (each kind and dtype in a process of its own, 60 s at most)
       python recurrent_bench.py LSTM float16

forward_us, backward_us: mean of five calls queued behind a sleep kernel. Layers of a thousand steps and more launch more
kernels than the queue holds, so their times may be the host's.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import torch
from queued import mean_us

GROUPS = (
    ("LSTM", "float32"), ("LSTM", "float16"), ("LSTM", "bfloat16"), ("GRU", "float32"), ("GRU", "float16"), ("RNN", "float32"),
    ("GRU", "bfloat16"),
)  # fmt: skip
UNITS = (256, 512, 1024, 2048)
SHAPES = ((64, 64), (256, 32), (512, 16), (128, 256))  # steps, batch
_SLEEP_CYCLES = 30_000_000
TWO_WAYS = (512,)  # units of the layers that are measured bidirectional, too


def measure(kind: str, dtype: str, layers: int, units: int, shape: tuple[int, int], bidirectional: bool) -> dict[str, object]:
    steps, batch = shape
    made = {"device": "cuda", "dtype": getattr(torch, dtype)}
    module = getattr(torch.nn, kind)(units, units, num_layers=layers, bidirectional=bidirectional, **made)
    x = torch.randn(steps, batch, units, requires_grad=True, **made)
    output = module(x)[0]
    gradient = torch.randn_like(output)
    row = {"kind": kind, "dtype": dtype, "layers": layers, "hidden": units, "seq": steps, "batch": batch, "bidirectional": bidirectional}
    row["forward_us"] = mean_us(lambda: module(x)[0], _SLEEP_CYCLES)
    row["backward_us"] = mean_us(lambda: torch.autograd.backward(output, gradient, retain_graph=True), _SLEEP_CYCLES)
    return row


def main() -> None:
    if len(sys.argv) == 3:
        kind, dtype = sys.argv[1:]
        for layers, units, shape, two_ways in itertools.product((1, 2), UNITS, SHAPES, (False, True)):
            if units in TWO_WAYS or not two_ways:
                print(json.dumps(measure(kind, dtype, layers, units, shape, two_ways)), flush=True)
        return
    for kind, dtype in GROUPS:
        try:
            subprocess.run([sys.executable, __file__, kind, dtype], timeout=60, check=False)
        except subprocess.TimeoutExpired:
            print(f"{kind} {dtype}: more than 60 s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
