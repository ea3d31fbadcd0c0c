"""The same step under FakeTensorMode (CPU tensors: its CUDA backward needs a device), with its cache, in a plain process."""

import statistics
import time

import llama
import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def main():
    torch.set_num_threads(1)
    seconds = []
    with FakeTensorMode():
        step = llama.make("cpu")
        for _ in range(4):
            began = time.process_time()
            step()
            seconds.append(time.process_time() - began)
    print(f"CPU s a step: median {statistics.median(seconds[1:]):.4f}, first {seconds[0]:.4f}")


main()
