"""What torch.compile's kernels and launches cost on one GPU; needs torch with Triton, for the model part transformers.

usage: python compile_bench.py --out FILE [--seconds 480] [PART ...]      (default: all parts, in this order)

    graphs    host and device time of a replayed CUDA graph by its number of nodes
    host      host time per call of compiled functions of 1 to 64 kernels, of extern calls, with gradients, with many
    parameters models    training steps, compiled: step time, peak memory, every kernel with its count and device time
    kernels   families of fused kernels at several sizes: device time of each beside what Inductor says of it (kind,
    numels,
              bytes, loads, stores, reductions, source text)
    autotune  a training step with mode="max-autotune-no-cudagraphs"

FILE is rewritten after every measurement, so a run cut short keeps what it had. A part that fails leaves its error
in FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # a cached graph would not pass through define_kernel

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

RESULT: dict[str, Any] = {"errors": []}
DEFINED: dict[str, list[dict[str, Any]]] = {}  # kernel name -> descriptions, since the last forget()
FLUSH_BYTES = 256 << 20


# ------------------------------------------------------------------ what Inductor knows of its kernels


def follow_kernels() -> None:
    """Keep a description of each kernel that Inductor defines."""
    from torch._inductor.codegen import triton as codegen

    define = codegen.TritonScheduling.define_kernel

    def define_kernel(self: Any, src_code: str, node_schedule: Any, kernel: Any) -> str:
        name = define(self, src_code, node_schedule, kernel)
        try:
            DEFINED.setdefault(name, []).append(describe(kernel, src_code))
        except Exception as error:  # a description is a bonus, the measurement goes on
            DEFINED.setdefault(name, []).append({"error": repr(error), "source": src_code})
        return name

    codegen.TritonScheduling.define_kernel = define_kernel


def describe(kernel: Any, source: str) -> dict[str, Any]:
    from torch._inductor.virtualized import V

    def hint(value: Any) -> int:
        try:
            return int(value)
        except TypeError:
            return int(V.graph.sizevars.size_hint(value))

    _, call_args, _, _ = kernel.args.python_argdefs()
    accesses = kernel.features.buf_accesses()
    arguments = []
    for name in call_args:
        if name in accesses:
            found = [str(getattr(dep, "index", "*")) for dep in accesses[name]]
            arguments.append(
                {
                    "name": str(name),
                    "dtype": str(V.graph.get_dtype(name)),
                    "numel": hint(V.graph.get_numel(name)),
                    "index": found,
                }
            )
    return {
        "numels": {key: hint(value) for key, value in kernel.numels.items()},
        "bytes": int(kernel.estimate_kernel_num_bytes()),
        "loads": kernel.num_load,
        "stores": getattr(kernel, "num_store", 0),
        "reductions": kernel.num_reduction,
        "persistent": bool(kernel.persistent_reduction),
        "mix_order": bool(getattr(kernel, "mix_order_reduction", False)),
        "arguments": arguments,
        "source": source,
    }


def forget() -> None:
    DEFINED.clear()
    torch._dynamo.reset()


# ------------------------------------------------------------------ measuring


def kernel_times(run: Callable[[], object], repeats: int = 5) -> dict[str, dict[str, Any]]:
    """name -> count per run, median device us; the L2 cache is flushed before every run."""
    flush = torch.empty(FLUSH_BYTES // 4, device="cuda")
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(repeats):
            flush.zero_()
            run()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times.setdefault(event.name, []).append(event.time_range.elapsed_us())
    return {
        name: {"count": len(us) / repeats, "us": statistics.median(us), "sum_us": sum(us) / repeats}
        for name, us in times.items()
    }


def with_descriptions(times: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"kernel": name, **row, "described": DEFINED.get(name, [])} for name, row in times.items()]


def host_us(call: Callable[[], object], inner: int = 20, repeats: int = 15) -> float:
    """Host time of one call while the device keeps up: median over bursts of `inner` calls, each after a
    synchronize."""
    for _ in range(5):
        call()
    found = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(inner):
            call()
        found.append((time.perf_counter() - begin) / inner * 1e6)
    torch.cuda.synchronize()
    return statistics.median(found)


def made(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_(grad)


# ------------------------------------------------------------------ fused kernels

BF, F32 = torch.bfloat16, torch.float32
SIZES = [(128, 128), (512, 512), (1024, 768), (2048, 1024), (4096, 2048), (8192, 3072), (16384, 4096), (32768, 8200)]
ROWS = [(64, 768), (8192, 256), (8192, 768), (8192, 1600), (16384, 2048), (4096, 4096), (8192, 8192), (2048, 16384)]
WIDE = [(8192, 1000), (2048, 32000), (4096, 50257), (2048, 128256)]


def kernel_cases() -> Iterator[tuple[str, Callable[..., Any], list[torch.Tensor], bool]]:
    """(name, function of tensors -> list of results, tensors, whether backward runs)"""
    for dtype in (BF, F32):
        label = str(dtype)[6:]

        def each(function: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
            return lambda *xs: [function(x) for x in xs]

        def tensors(shapes: list[Any], grad: bool = False, dtype: torch.dtype = dtype) -> list[torch.Tensor]:
            return [made(*shape, dtype=dtype, grad=grad) for shape in shapes]

        yield f"scale/{label}", each(lambda x: x * 2 + 1), tensors(SIZES), False
        yield f"gelu/{label}", each(lambda x: F.gelu(x, approximate="tanh")), tensors(SIZES, True), True
        yield f"swiglu/{label}", each(lambda x: F.silu(x[:, ::2]) * x[:, 1::2]), tensors(SIZES[:-1], True), True
        yield f"halves/{label}", each(lambda x: F.silu(x.chunk(2, 1)[0]) * x.chunk(2, 1)[1]), tensors(SIZES, True), True
        yield f"exp/{label}", each(lambda x: torch.exp(x) / (1 + x * x)), tensors(SIZES), False
        yield f"dropout/{label}", each(lambda x: F.dropout(x, 0.1)), tensors(SIZES[:-1], True), True
        yield f"transposed/{label}", each(lambda x: x.t().contiguous() + 1), tensors(SIZES), False
        yield f"column/{label}", each(lambda x: x + x[:, :1] * x[:1]), tensors(SIZES), False
        yield f"layer_norm/{label}", each(lambda x: F.layer_norm(x, x.shape[1:])), tensors(ROWS, True), True
        yield f"rms_norm/{label}", each(lambda x: F.rms_norm(x, x.shape[1:])), tensors(ROWS, True), True
        yield f"softmax/{label}", each(lambda x: F.softmax(x, -1)), tensors(ROWS, True), True
        yield f"row_sum/{label}", each(lambda x: x.float().pow(2).sum(-1)), tensors(ROWS + WIDE), False
        yield f"column_sum/{label}", each(lambda x: x.float().sum(0)), tensors(ROWS + WIDE[:1]), False
        yield f"total/{label}", each(lambda x: x.float().abs().mean()), tensors(SIZES), False

        def entropy(*xs: torch.Tensor) -> list[torch.Tensor]:
            return [F.cross_entropy(x.float(), torch.zeros(len(x), dtype=torch.int64, device="cuda")) for x in xs]

        yield f"cross_entropy/{label}", entropy, tensors(WIDE, True), True

    yield "to_float32", lambda *xs: [x.float() for x in xs], [made(*s) for s in SIZES], False
    yield "to_bfloat16", lambda *xs: [x.bfloat16() for x in xs], [made(*s, dtype=F32) for s in SIZES], False

    def residual(*xs: torch.Tensor) -> list[torch.Tensor]:
        half = len(xs) // 3
        return [
            F.layer_norm(x + F.dropout(y, 0.1).float(), w.shape, w).bfloat16()
            for x, y, w in zip(xs[:half], xs[half:], xs[2 * half :])
        ]

    shapes = ROWS[:6]
    inputs = [made(*s, dtype=F32, grad=True) for s in shapes] + [made(*s, grad=True) for s in shapes]
    yield "residual", residual, inputs + [made(s[1], dtype=F32, grad=True) for s in shapes], True

    def rotary(*xs: torch.Tensor) -> list[torch.Tensor]:
        found = []
        for x in xs:
            angle = torch.arange(x.shape[1], device="cuda")[:, None, None] * torch.arange(x.shape[3], device="cuda")
            turned = torch.cat((-x[..., x.shape[3] // 2 :], x[..., : x.shape[3] // 2]), -1)
            found.append((x * angle.cos() + turned * angle.sin()).to(x.dtype).transpose(1, 2).contiguous())
        return found

    turned = ((1, 1024, 8), (2, 4096, 8), (2, 4096, 32))
    yield "rotary", rotary, [made(*sizes, 128, grad=True) for sizes in turned], True

    def embedding(*xs: torch.Tensor) -> list[torch.Tensor]:
        index = torch.arange(8192, device="cuda")
        return [F.embedding((index * 7919) % len(x), x) for x in xs]

    tables = ((50257, 768), (32000, 4096), (128256, 2048))
    yield "embedding", embedding, [made(*sizes, grad=True) for sizes in tables], True

    def batch_norm(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [F.relu(F.batch_norm(x, None, None, training=True)) for x in xs]

    images = [(64, 64, 112, 112), (64, 256, 56, 56), (64, 512, 28, 28), (64, 2048, 7, 7)]
    yield "batch_norm/nchw", batch_norm, [made(*s, grad=True) for s in images], True
    last = [made(*s).to(memory_format=torch.channels_last).requires_grad_() for s in images]
    yield "batch_norm/nhwc", batch_norm, last, True


def kernels() -> Iterator[dict[str, Any]]:
    for name, function, tensors, backward in kernel_cases():
        forget()
        try:
            compiled = torch.compile(function, dynamic=False)

            def run() -> None:
                outputs = compiled(*tensors)
                if backward:
                    torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
                    for tensor in tensors:
                        tensor.grad = None

            yield {"case": name, "kernels": with_descriptions(kernel_times(run))}
        except Exception as error:
            yield {"case": name, "error": repr(error)[:500]}


# ------------------------------------------------------------------ host time


def host() -> Iterator[dict[str, Any]]:
    for count in (1, 8, 32, 64):
        forget()
        xs = [torch.randn(64 + 8 * i, device="cuda") for i in range(count)]
        pointwise = torch.compile(lambda *ts: [t * 2 + 1 for t in ts], dynamic=False)
        yield {"what": "pointwise", "count": count, "us": host_us(lambda: pointwise(*xs))}
        grads = [x.clone().requires_grad_() for x in xs]
        yield {"what": "pointwise forward with gradient", "count": count, "us": host_us(lambda: pointwise(*grads))}
        graphed = torch.compile(lambda *ts: [t * 2 + 1 for t in ts], dynamic=False, mode="reduce-overhead")
        yield {"what": "pointwise reduce-overhead", "count": count, "us": host_us(lambda: graphed(*xs))}
    for count in (1, 8, 32):
        forget()
        w = torch.randn(64, 64, device="cuda", dtype=BF)

        def chain(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = x @ w
            return x

        product = torch.compile(chain, dynamic=False)
        yield {"what": "mm", "count": count, "us": host_us(lambda: product(w))}
        b = torch.randn(64, device="cuda", dtype=BF)

        def biased(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = F.linear(x, w, b)
            return x

        linear = torch.compile(biased, dynamic=False)
        yield {"what": "addmm", "count": count, "us": host_us(lambda: linear(w))}
        q = torch.randn(1, 4, 64, 64, device="cuda", dtype=BF)

        def attentions(x: torch.Tensor) -> torch.Tensor:
            for _ in range(count):
                x = F.scaled_dot_product_attention(x, x, x, is_causal=True)
            return x

        attention = torch.compile(attentions, dynamic=False)
        with torch.no_grad():
            yield {"what": "attention", "count": count, "us": host_us(lambda: attention(q))}
    for count in (1, 10, 100):
        forget()
        module = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(64, device="cuda")) for _ in range(count))

        class Sum(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for parameter in self.inner:
                    x = x * parameter
                return x

        x = torch.randn(64, device="cuda")
        compiled = torch.compile(Sum(), dynamic=False)
        yield {"what": "module forward", "parameters": count, "us": host_us(lambda: compiled(x))}

        def step() -> None:
            compiled(x).backward(x)

        yield {"what": "module forward and backward", "parameters": count, "us": host_us(step)}
    forget()
    plain = torch.randn(64, device="cuda")
    yield {"what": "eager add", "count": 1, "us": host_us(lambda: plain + 1)}


# ------------------------------------------------------------------ CUDA graphs


def graphs() -> Iterator[dict[str, Any]]:
    for what in ("small", "1 MiB", "mm"):
        for count in (1, 10, 100, 1000, 3000):
            x = torch.randn(64 if what == "small" else 1 << 18, device="cuda")
            y = torch.randn(1024, 1024, device="cuda", dtype=BF)
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                x.add_(1)
                y @ y
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            begin = time.perf_counter()
            with torch.cuda.graph(graph):
                for _ in range(count):
                    y @ y if what == "mm" else x.add_(1)
            capture_us = (time.perf_counter() - begin) * 1e6
            graph.replay()
            torch.cuda.synchronize()
            hosts, devices = [], []
            for _ in range(20):
                torch.cuda.synchronize()
                first, second = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                torch.cuda._sleep(200_000)
                first.record()
                begin = time.perf_counter()
                graph.replay()
                hosts.append((time.perf_counter() - begin) * 1e6)
                second.record()
                torch.cuda.synchronize()
                devices.append(first.elapsed_time(second) * 1e3)
            yield {
                "what": what,
                "nodes": count,
                "capture_us": capture_us,
                "replay_host_us": statistics.median(hosts),
                "replay_device_us": statistics.median(devices),
            }


# ------------------------------------------------------------------ training steps


def language_model(name: str, batch: int, seq: int, mode: str | None) -> Callable[[], float]:
    import transformers

    if name == "gpt2-124m":
        config, cls = transformers.GPT2Config(use_cache=False), transformers.GPT2LMHeadModel
    elif name == "llama-1b":
        config, cls = (
            transformers.LlamaConfig(
                vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
                num_attention_heads=32, num_key_value_heads=8,
                max_position_embeddings=seq, use_cache=False, tie_word_embeddings=False,
            ),
            transformers.LlamaForCausalLM,
        )  # fmt: skip
    else:
        config, cls = (
            transformers.BertConfig(
                hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
            ),
            transformers.BertForMaskedLM,
        )
    with torch.device("cuda"):
        model = cls(config)
    model.train()
    model.compile(mode=mode)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> float:
        tokens = torch.randint(0, config.vocab_size, (batch, seq)).pin_memory().to("cuda", non_blocking=True)
        with torch.autocast("cuda", dtype=BF):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


MODELS = [
    ("gpt2-124m", 8, 1024, None),
    ("gpt2-124m", 1, 256, None),
    ("llama-1b", 2, 4096, None),
    ("bert-large", 32, 512, None),
    ("gpt2-124m", 8, 1024, "reduce-overhead"),
    ("gpt2-124m", 1, 256, "reduce-overhead"),
    ("gpt2-124m", 8, 1024, "max-autotune-no-cudagraphs"),
]


def models() -> Iterator[dict[str, Any]]:
    yield from _models(MODELS[:-1])


def autotune() -> Iterator[dict[str, Any]]:
    yield from _models(MODELS[-1:])


def _models(chosen: list[tuple[str, int, int, str | None]]) -> Iterator[dict[str, Any]]:
    for name, batch, seq, mode in chosen:
        forget()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        row: dict[str, Any] = {"model": name, "batch": batch, "seq": seq, "mode": mode or "default"}
        try:
            torch.manual_seed(0)
            begin = time.perf_counter()
            step = language_model(name, batch, seq, mode)
            for _ in range(4):
                step()
            torch.cuda.synchronize()
            row["warmup_s"] = time.perf_counter() - begin
            times = []
            for _ in range(8):
                begin = time.perf_counter()
                step()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - begin) * 1e3)
            row["step_ms"] = statistics.median(times)
            row["max_allocated_mib"] = torch.cuda.max_memory_allocated() / 2**20
            row["max_reserved_mib"] = torch.cuda.max_memory_reserved() / 2**20
            row["allocated_mib"] = torch.cuda.memory_allocated() / 2**20
            with profile(activities=[ProfilerActivity.CUDA]) as prof:
                step()
                torch.cuda.synchronize()
            events = [e for e in prof.events() if e.device_type == torch.autograd.DeviceType.CUDA]
            sums: dict[str, dict[str, Any]] = {}
            for event in events:
                entry = sums.setdefault(event.name, {"count": 0, "sum_us": 0.0})
                entry["count"] += 1
                entry["sum_us"] += event.time_range.elapsed_us()
            for entry in sums.values():
                entry["us"] = entry["sum_us"] / entry["count"]
            row |= {"num_kernels": len(events), "busy_ms": sum(e["sum_us"] for e in sums.values()) / 1e3}
            row["kernels"] = with_descriptions(sums)
            del step
        except Exception as error:
            row["error"] = repr(error)[:500]
        yield row


# ------------------------------------------------------------------ all of it

PARTS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "graphs": graphs,
    "host": host,
    "models": models,
    "kernels": kernels,
    "autotune": autotune,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=" ".join(PARTS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=480, help="no measurement begins after this time")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    if torch.cuda.is_available():
        RESULT["machine"] = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "date": time.strftime("%Y-%m-%d"),
        }
    follow_kernels()
    for part in options.parts or list(PARTS):
        RESULT[part] = []
        try:
            for row in PARTS[part]():
                RESULT[part].append(row)
                options.out.write_text(json.dumps(RESULT), encoding="utf-8")
                shown = {key: value for key, value in row.items() if key != "kernels"}
                print(part, json.dumps(shown), flush=True)
                if time.monotonic() > end:
                    break
        except Exception:
            RESULT["errors"].append({"part": part, "error": traceback.format_exc()[-2000:]})
            print(part, RESULT["errors"][-1]["error"], flush=True)
    options.out.write_text(json.dumps(RESULT), encoding="utf-8")


if __name__ == "__main__":
    main()
