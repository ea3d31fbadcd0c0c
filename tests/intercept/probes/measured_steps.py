"""A training step measured on an H200: the same operators, the same peak of memory. Arguments: train_bench.py, case.

Prints the peak in MiB and the launches of the fourth step by operator.
"""

import collections
import importlib.util
import json
import sys

import kernel_probe

kernel_probe.arm(name="NVIDIA H200", total_memory=143_771 << 20)

import torch
from kernel_probe import launches

torch.backends.cudnn.version = lambda: 91900  # as measured, with the rules of torch 2.11
from phantora.intercept import sdpa

sdpa._CUDNN_DROPOUT_IN_SIXTEENTHS = False

spec = importlib.util.spec_from_file_location("train_bench", sys.argv[1])
train_bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train_bench)
torch.cuda.reset_peak_memory_stats()
model, step, _ = train_bench.CASES[sys.argv[2]]()
for _ in range(3):
    step()
launches()
step()
counts = collections.Counter(call.name for call, _, _ in launches())
print(json.dumps({"peak_mib": torch.cuda.max_memory_allocated() / 2**20, "launches": counts}))
