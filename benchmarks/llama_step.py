"""Run under `phantora record-and-simulate`: CPU seconds of the rank process for each step of the Llama-2-7B shape."""

import statistics
import sys
import time

import llama
import torch


def main():
    step = llama.make("cuda")
    seconds = []
    for _ in range(int(sys.argv[1])):
        began = time.process_time()  # real CPU time: only the clocks of the wall are virtual
        step().item()
        seconds.append(time.process_time() - began)
    print(f"CPU s a step: median {statistics.median(seconds[2:]):.4f}, first {seconds[0]:.4f}", torch.cuda.max_memory_allocated() >> 20, "MiB")


main()
