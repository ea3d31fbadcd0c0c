"""What memory costs on a GPU: driver calls by size, the context, and the temporaries that library calls allocate.

usage: python memory_bench.py --out DIR      # writes DIR/memory.json

`driver`: host us of cudaMalloc and cudaFree by size, with an idle device and behind a spinning kernel (does the call wait?).
`growth`: the same through torch's allocator, plain and with expandable segments (torch.empty of a new segment, empty_cache).
`context`: bytes of the device that are neither free nor in segments, after the first kernels of several libraries.
`temporaries`: per call, sizes of the blocks that it allocated, in order: [bytes, freed before the call returned].
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

MIB = 1 << 20
SIZES_MIB = (2, 20, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)


def library() -> ctypes.CDLL:
    """libcudart as torch has loaded it."""
    folders = [os.path.dirname(torch.__file__) + "/../nvidia", "/usr/local/cuda/lib64"]
    for folder in folders:
        for path in sorted(glob.glob(folder + "/**/libcudart.so.*", recursive=True)):
            return ctypes.CDLL(path)
    return ctypes.CDLL("libcudart.so")


def timed_us(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e6


def spread(times_us: list[float]) -> dict[str, float]:
    return {
        "us": round(statistics.median(times_us), 2),
        "us_min": round(min(times_us), 2),
        "us_max": round(max(times_us), 2),
        "repeats": len(times_us),
    }


def driver_rows(cudart: ctypes.CDLL) -> Iterator[dict[str, Any]]:
    for size in SIZES_MIB:
        for busy in (False, True):
            mallocs, frees = [], []
            for _ in range(7 if size < 4096 else 4):
                pointer = ctypes.c_void_p()
                torch.cuda.synchronize()
                if busy:
                    torch.cuda._sleep(20_000_000)  # about 10 ms
                mallocs.append(timed_us(lambda: cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size * MIB))))
                torch.cuda.synchronize()
                if busy:
                    torch.cuda._sleep(20_000_000)
                frees.append(timed_us(lambda: cudart.cudaFree(pointer)))
            for call, times in (("cudaMalloc", mallocs), ("cudaFree", frees)):
                yield {"call": call, "bytes": size * MIB, "behind_kernel": busy, **spread(times)}


def growth_rows() -> Iterator[dict[str, Any]]:
    for settings in ("expandable_segments:False", "expandable_segments:True"):
        torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings(settings)
        for size in (2, 20, 64, 256, 1024, 4096):
            grows, releases = [], []
            for _ in range(5):
                torch.cuda.synchronize()
                made: list[torch.Tensor] = []
                grows.append(timed_us(lambda: made.append(torch.empty(size * MIB, dtype=torch.uint8, device="cuda"))))
                made.clear()
                releases.append(timed_us(torch.cuda.empty_cache))
            yield {"call": "torch.empty, new segment", "bytes": size * MIB, "settings": settings, **spread(grows)}
            yield {"call": "torch.cuda.empty_cache", "bytes": size * MIB, "settings": settings, **spread(releases)}
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def context_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def temporaries(action: Callable[[], Any]) -> list[list[int]]:
    """Blocks of the second call of `action` (handles and workspaces that stay are there by then)."""
    kept = action()
    del kept
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000, clear_history=True)
    kept = action()
    history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(None)
    del kept
    blocks: list[list[int]] = []
    live: dict[int, list[int]] = {}
    for entry in history:
        if entry["action"] == "alloc":
            live[entry["addr"]] = [entry["size"], 0]
            blocks.append(live[entry["addr"]])
        elif entry["action"] == "free_requested" and entry["addr"] in live:
            live.pop(entry["addr"])[1] = 1
    return blocks


# name: (input, weight, options, channels last)
CONVOLUTIONS: list[tuple[list[int], list[int], dict[str, Any], bool]] = [
    ([64, 3, 224, 224], [64, 3, 7, 7], {"stride": 2, "padding": 3}, False),
    ([64, 3, 224, 224], [64, 3, 7, 7], {"stride": 2, "padding": 3}, True),
    ([64, 3, 224, 224], [1024, 3, 16, 16], {"stride": 16}, False),
    ([64, 64, 56, 56], [64, 64, 3, 3], {"padding": 1}, False),
    ([64, 64, 56, 56], [64, 64, 3, 3], {"padding": 1}, True),
    ([64, 256, 56, 56], [128, 256, 1, 1], {}, False),
    ([64, 256, 56, 56], [512, 256, 1, 1], {"stride": 2}, False),
    ([64, 256, 56, 56], [128, 256, 1, 1], {}, True),
    ([64, 1024, 14, 14], [512, 1024, 1, 1], {}, False),
    ([64, 1024, 14, 14], [256, 1024, 1, 1], {}, False),
    ([64, 256, 14, 14], [256, 256, 3, 3], {"padding": 1}, False),
    ([64, 512, 7, 7], [512, 512, 3, 3], {"padding": 1}, False),
    ([64, 512, 7, 7], [2048, 512, 1, 1], {}, False),
    ([4, 320, 64, 64], [320, 320, 3, 3], {"padding": 1}, False),
    ([4, 4, 64, 64], [320, 4, 3, 3], {"padding": 1}, False),
    ([4, 320, 64, 64], [4, 320, 3, 3], {"padding": 1}, False),
    ([4, 640, 32, 32], [640, 640, 3, 3], {"padding": 1}, False),
    ([4, 1280, 16, 16], [1280, 1280, 3, 3], {"padding": 1}, False),
    ([4, 2560, 8, 8], [1280, 2560, 3, 3], {"padding": 1}, False),
    ([4, 2560, 8, 8], [1280, 2560, 1, 1], {}, False),
    ([4, 320, 64, 64], [320, 320, 3, 3], {"padding": 1, "stride": 2}, False),
    ([32, 96, 56, 56], [96, 1, 7, 7], {"padding": 3, "groups": 96}, False),
    ([32, 96, 56, 56], [96, 1, 7, 7], {"padding": 3, "groups": 96}, True),
    ([32, 256, 28, 28], [256, 8, 3, 3], {"padding": 1, "groups": 32}, False),
    ([32, 256, 28, 28], [256, 8, 3, 3], {"padding": 1, "groups": 32}, True),
    ([16, 512, 3000], [512, 512, 3], {"padding": 1, "stride": 2}, False),
    ([4, 64, 16, 56, 56], [64, 64, 3, 3, 3], {"padding": 1}, False),
    ([16, 64, 65, 65], [64, 64, 3, 3], {"padding": 2, "dilation": 2}, False),
]


def convolution_rows() -> Iterator[dict[str, Any]]:
    for kind in ("fp32", "tf32", "bf16"):
        torch.backends.cudnn.allow_tf32 = kind == "tf32"
        dtype = torch.bfloat16 if kind == "bf16" else torch.float32
        for shape, weight, options, channels_last in CONVOLUTIONS:
            layout = torch.channels_last if channels_last else torch.contiguous_format
            x = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout)
            w = torch.randn(weight, device="cuda", dtype=dtype).to(memory_format=layout)
            row = {"op": "conv", "input": shape, "weight": weight, "channels_last": channels_last, "kind": kind, **options}
            call = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(shape) - 2]
            try:
                row["forward"] = temporaries(lambda: call(x, w, **options))
                y = call(x, w, **options)
                dims = len(shape) - 2
                expand = lambda name, default: [options.get(name, default)] * dims  # noqa: E731
                arguments = (y, x, w, [0], expand("stride", 1), expand("padding", 0), expand("dilation", 1), False, [0] * dims)
                for direction, mask in (("dgrad", [True, False, False]), ("wgrad", [False, True, False])):
                    row[direction] = temporaries(
                        lambda: torch.ops.aten.convolution_backward(*arguments, options.get("groups", 1), mask)
                    )
            except RuntimeError as error:
                row["error"] = str(error)[:200]
            yield row
            del x, w
            torch.cuda.empty_cache()
    torch.backends.cudnn.allow_tf32 = True


def other_calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    ids = torch.randint(0, 50257, (8, 1024), device="cuda")
    table = torch.randn(50257, 768, device="cuda", requires_grad=True)
    flat = torch.randn(1 << 20, device="cuda")
    rows = torch.randn(4096, 4096, device="cuda")
    mask = flat > 0
    positions = torch.randint(0, 1 << 20, (1 << 18,), device="cuda")
    grad = torch.randn(8, 1024, 768, device="cuda")
    logits = torch.randn(8192, 50257, device="cuda", dtype=torch.bfloat16)
    target = torch.randint(0, 50257, (8192,), device="cuda")
    many = [torch.randn(768, 768, device="cuda") for _ in range(148)]
    aten = torch.ops.aten
    yield "embedding_dense_backward 8192 of 50257x768", lambda: aten.embedding_dense_backward(grad, ids, 50257, -1, False)
    yield "embedding 8192", lambda: F.embedding(ids, table)
    yield "sort 2^20", lambda: torch.sort(flat)
    yield "sort 4096x4096", lambda: torch.sort(rows, dim=1)
    yield "argsort int64 2^18", lambda: torch.argsort(positions)
    yield "topk 4096x4096 k=8", lambda: torch.topk(rows, 8, dim=1)
    yield "topk 2^20 k=1000", lambda: torch.topk(flat, 1000)
    yield "nonzero 2^20", lambda: torch.nonzero(mask)
    yield "masked_select 2^20", lambda: torch.masked_select(flat, mask)
    yield "unique 2^18", lambda: torch.unique(positions)
    yield "cumsum 2^20", lambda: torch.cumsum(flat, 0)
    yield "cumsum 4096x4096", lambda: torch.cumsum(rows, 1)
    yield "index_put accumulate 2^18", lambda: flat.index_put((positions,), flat[: 1 << 18], accumulate=True)
    yield "index_put 2^18", lambda: flat.index_put((positions,), flat[: 1 << 18])
    yield "index_add 2^18", lambda: flat.index_add(0, positions, flat[: 1 << 18])
    yield "scatter_add 2^18", lambda: flat.scatter_add(0, positions, flat[: 1 << 18])
    yield "multinomial 4096x4096", lambda: torch.multinomial(rows.abs(), 8)
    yield "randperm 2^18", lambda: torch.randperm(1 << 18, device="cuda")
    yield "sum 2^20", lambda: flat.sum()
    yield "sum 4096x4096 dim 0", lambda: rows.sum(0)
    yield "mean 2^26", lambda: torch.ones(1 << 26, device="cuda").mean()
    yield "max 2^20", lambda: flat.max()
    yield "var_mean 4096x4096", lambda: torch.var_mean(rows)
    yield "cross_entropy 8192x50257 bf16", lambda: F.cross_entropy(logits, target)
    yield "cross_entropy 8192x50257 float()", lambda: F.cross_entropy(logits.float(), target)
    yield "foreach_norm 148", lambda: torch._foreach_norm(many)
    yield "layer_norm", lambda: F.layer_norm(grad, (768,))
    bag_ids = torch.randint(0, 400_000, (16384, 4), device="cuda")
    bag_table = torch.randn(400_000, 128, device="cuda", requires_grad=True)
    yield "embedding_bag sum forward", lambda: F.embedding_bag(bag_ids, bag_table, mode="sum")
    yield "embedding_bag sum backward", lambda: backward(F.embedding_bag(bag_ids, bag_table, mode="sum"), [bag_table])
    yield "layer_norm backward", lambda: layer_norm_backward(grad)
    yield "group_norm backward", lambda: group_norm_backward()
    yield "batch_norm backward", lambda: batch_norm_backward()
    yield "linalg.inv 512", lambda: torch.linalg.inv(rows[:512, :512])
    yield "linalg.qr 512", lambda: torch.linalg.qr(rows[:512, :512])
    yield "fft 4096x4096", lambda: torch.fft.fft(rows)


def backward(output: torch.Tensor, inputs: list[torch.Tensor]) -> Any:
    return torch.autograd.grad(output, inputs, torch.ones_like(output))


def layer_norm_backward(grad: torch.Tensor) -> Any:
    x, w, b = (t.clone().requires_grad_() for t in (grad, grad[0, 0], grad[0, 0]))
    return backward(F.layer_norm(x, (768,), w, b), [x, w, b])


def group_norm_backward() -> Any:
    x = torch.randn(4, 320, 64, 64, device="cuda", requires_grad=True)
    w, b = torch.ones(320, device="cuda", requires_grad=True), torch.ones(320, device="cuda", requires_grad=True)
    return backward(F.group_norm(x, 32, w, b), [x, w, b])


def batch_norm_backward() -> Any:
    x = torch.randn(64, 256, 56, 56, device="cuda", requires_grad=True)
    w, b = torch.ones(256, device="cuda", requires_grad=True), torch.ones(256, device="cuda", requires_grad=True)
    return backward(F.batch_norm(x, None, None, w, b, training=True), [x, w, b])


def attention_rows() -> Iterator[dict[str, Any]]:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    shapes = [([2, 32, 4096, 64], [2, 8, 4096, 64]), ([8, 12, 1024, 64], [8, 12, 1024, 64]), ([2, 32, 2048, 128], [2, 32, 2048, 128])]
    for query, key in shapes:
        for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"):
            if name == "MATH" and query[2] > 2048:
                continue
            q = torch.randn(query, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            k, v = (torch.randn(key, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
            row: dict[str, Any] = {"op": "attention", "query": query, "key": key, "backend": name}
            with sdpa_kernel(getattr(SDPBackend, name)):
                call = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=query[1] != key[1])  # noqa: E731
                try:
                    row["forward"] = temporaries(call)
                    out = call()
                    ones = torch.ones_like(out)
                    row["backward"] = temporaries(lambda: torch.autograd.grad(out, [q, k, v], ones, retain_graph=True))
                except RuntimeError as error:
                    row["error"] = str(error)[:200]
            yield row


def temporary_rows() -> Iterator[dict[str, Any]]:
    yield from convolution_rows()
    for name, call in other_calls():
        try:
            yield {"op": name, "blocks": temporaries(call)}
        except RuntimeError as error:
            yield {"op": name, "error": str(error)[:200]}
    yield from attention_rows()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.zeros(1, device="cuda")
    context = {"first tensor": context_bytes()}
    x = torch.randn(1024, 1024, device="cuda")
    x @ x
    context["after a product"] = context_bytes()
    F.conv2d(torch.randn(1, 3, 64, 64, device="cuda"), torch.randn(8, 3, 3, 3, device="cuda"))
    context["after a convolution"] = context_bytes()
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "total_bytes": torch.cuda.mem_get_info()[1],
    }
    path = options.out / "memory.json"
    parts = {"driver": driver_rows(library()), "growth": growth_rows(), "temporaries": temporary_rows()}
    for name, rows in parts.items():
        start = time.monotonic()
        result[name] = list(rows)
        print(name, len(result[name]), f"{time.monotonic() - start:.1f} s", flush=True)
        context[f"after {name}"] = context_bytes()
        result["context"] = context
        path.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
