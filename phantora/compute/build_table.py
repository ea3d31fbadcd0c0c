"""Makes a table of measured points from one-operator benchmarks.

usage: python -m phantora.compute.build_table OPS.jsonl.gz OUT.csv.gz [--date 2026-11-29 --driver ... --torch ...]

Each benchmark line (op, shapes or numel, dtype and options, us, host_us) is turned into the call it timed, and the
call's family says where on which curve the point lies: what is measured and what is looked up agree by construction.

Sustained load: a benchmark repeats one product for 30 ms, and the power limit lowers the clock. Inside training steps
the same products run faster by 4 % at 1 ms, 10 % at 2.8 ms and 11 % at 5.5 ms per call and equally fast below 0.4 ms
(16-bit, Llama steps on the H200). Steps are what is simulated, so long 16-bit products are entered with in-step time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phantora.compute.call import OpCall, TensorSpec
from phantora.compute.families import describe

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
Row = dict[str, Any]

# Left out: composites of several calls, PCIe copies (priced from the host profile), and lists of 200 small tensors
# whose outputs are allocated one by one, where launches and not kernels were timed.
_SKIPPED = {"isfinite_all", "empty_add", "memcpy_h2d", "memcpy_d2h"}
_HOST_BOUND = {("_foreach_sqrt", 200), ("_foreach_norm", 200)}

# The lists of tensors that the foreach benchmarks update, by their number of tensors.
_LISTS = {
    60: [(768, 768)] * 48 + [(3072, 768)] * 12,
    14: [(4096, 4096)] * 8 + [(11008, 4096)] * 6,
    200: [(2048,)] * 200,
    100: [(1024, 1024)] * 100,
}


def contiguous(shape: tuple[int, ...], dtype: str, order: tuple[int, ...] | None = None) -> TensorSpec:
    """A dense tensor; `order` lists its dimensions from the slowest to the fastest."""
    stride, expected = [0] * len(shape), 1
    for dim in reversed(order or tuple(range(len(shape)))):
        stride[dim] = expected
        expected *= shape[dim]
    return TensorSpec(tuple(shape), tuple(stride), dtype)


def call(name: str, out: list[TensorSpec] | TensorSpec, flags: tuple[tuple[str, Any], ...] = (), **args: Any) -> OpCall:
    outputs = tuple(out) if isinstance(out, list) else (out,)
    return OpCall(
        name if "::" in name or name.startswith("memcpy") else f"aten::{name}",
        args=tuple(args.items()),
        outputs=outputs,
        flags=flags,
    )


def call_of(row: Row) -> OpCall | None:
    """The call that a benchmark line timed, None for lines that are left out."""
    if "error" in row or row["op"] in _SKIPPED or (row["op"], row.get("tensors")) in _HOST_BOUND:
        return None
    for matches, make in _MAKERS:
        if matches(row):
            return make(row, DTYPES[row["dtype"]])
    raise ValueError(f"no call is known for the benchmark of {row['op']}")


def _product(row: Row, dtype: str) -> OpCall:
    (m, k), (_, n) = row["shapes"][-2:]
    left, right = row["layout"]
    a = contiguous((m, k), dtype, (1, 0) if left == "t" else None)
    b = contiguous((k, n), dtype, (1, 0) if right == "t" else None)
    flags = (("allow_tf32", row["dtype"] == "tf32"),)
    if row["op"] == "addmm":
        return call("addmm", contiguous((m, n), dtype), flags, self=contiguous((n,), dtype), mat1=a, mat2=b)
    return call("mm", contiguous((m, n), dtype), flags, self=a, mat2=b)


def _batched_product(row: Row, dtype: str) -> OpCall:
    (b, m, k), (_, _, n) = row["shapes"]
    return call(
        "bmm", contiguous((b, m, n), dtype), self=contiguous((b, m, k), dtype), mat2=contiguous((b, k, n), dtype)
    )


def _attention(row: Row, dtype: str) -> OpCall:
    q = contiguous(tuple(row["shapes"][0]), dtype)
    name = f"_scaled_dot_product_{row['backend']}_attention"
    args = {"query": q, "key": q, "value": q, "is_causal": row["causal"]}
    if row["op"] == "sdpa_bwd":
        return call(name + "_backward", [q, q, q], grad_out=q, **args)
    return call(name, q, **args)


def _pointwise(row: Row, dtype: str) -> OpCall:
    x, op = contiguous((row["numel"],), dtype), row["op"]
    if op in ("to_fp32", "to_bf16"):
        return call("_to_copy", contiguous(x.shape, "float32" if op == "to_fp32" else "bfloat16"), self=x)
    if op in ("sum", "norm"):
        return call("sum" if op == "sum" else "linalg_vector_norm", TensorSpec((), (), dtype), self=x)
    if op == "dropout":
        return call("native_dropout", [x, contiguous(x.shape, "bool")], input=x)
    if op in ("add", "add_", "mul"):
        return call(op, x, self=x, other=x)
    if op.endswith("_backward"):
        return call(op, x, grad_output=x, self=x)
    return call({"mul_scalar": "mul"}.get(op, op), x, self=x)


def _rows(row: Row, dtype: str) -> OpCall:
    r, c = row["shapes"][0]
    x, w, per_row, op = contiguous((r, c), dtype), contiguous((c,), dtype), contiguous((r, 1), dtype), row["op"]
    makers: dict[str, Callable[[], OpCall]] = {
        "softmax": lambda: call("_softmax", x, self=x, dim=-1),
        "log_softmax": lambda: call("_log_softmax", x, self=x, dim=-1),
        "log_softmax_backward": lambda: call("_log_softmax_backward_data", x, grad_output=x, output=x, dim=-1),
        "layer_norm": lambda: call(
            "native_layer_norm", [x, per_row, per_row], input=x, normalized_shape=(c,), weight=w, bias=w
        ),
        "layer_norm_backward": lambda: call(
            "native_layer_norm_backward", [x, w, w], grad_out=x, input=x, normalized_shape=(c,)
        ),
        "rms_norm": lambda: call("_fused_rms_norm", [x, per_row], input=x, normalized_shape=(c,), weight=w),
        "sum_dim": lambda: call("sum", w, self=x, dim=(0,)),
        "mean_dim": lambda: call("mean", per_row, self=x, dim=(-1,)),
        "transpose_contiguous": lambda: call(
            "clone", contiguous((c, r), dtype), self=contiguous((c, r), dtype, (1, 0))
        ),
        "argmax": lambda: call("argmax", contiguous((r,), "int64"), self=x, dim=-1),
        "cumsum": lambda: call("cumsum", x, self=x, dim=-1),
        "topk2": lambda: call("topk", [contiguous((r, 2), dtype), contiguous((r, 2), "int64")], self=x, k=2, dim=-1),
        "nll_loss": lambda: call(
            "nll_loss_forward", TensorSpec((), (), dtype), self=x, target=contiguous((r,), "int64")
        ),
    }
    return makers[op]()


def _lookup(row: Row, dtype: str) -> OpCall:
    v, d, n, op = row["vocab"], row["dim"], row["tokens"], row["op"]
    table, rows, index = contiguous((v, d), dtype), contiguous((n, d), dtype), contiguous((n,), "int64")
    if op == "embedding":
        return call(op, rows, weight=table, indices=index)
    if op == "index_select":
        return call(op, rows, self=table, dim=0, index=index)
    if op == "embedding_dense_backward":
        return call(op, table, grad_output=rows, indices=index)
    if op == "scatter_add":
        return call("scatter_add_", table, self=table, dim=0, index=TensorSpec((n, d), (1, 0), "int64"), src=rows)
    return call("index_add_", table, self=table, dim=0, index=index, source=rows)


def _list(row: Row, dtype: str) -> OpCall:
    op, tensors = row["op"], tuple(contiguous(shape, dtype) for shape in _LISTS[row["tensors"]])
    depth = {
        "_foreach_add_": 2,
        "_foreach_lerp_": 2,
        "_foreach_addcmul_": 3,
        "_foreach_addcdiv_": 3,
        "_fused_adamw_": 4,
    }.get(op, 1)
    args = tuple((name, tensors) for name in ("self", "grads", "exp_avgs", "exp_avg_sqs")[:depth])
    if op in ("_foreach_sqrt", "_foreach_norm"):
        outputs = tensors if op == "_foreach_sqrt" else tuple(TensorSpec((), (), dtype) for _ in tensors)
        return OpCall(f"aten::{op}", args=args, outputs=outputs)
    mutated = ("self", "exp_avgs", "exp_avg_sqs") if op.startswith("_fused") else ("self",)
    return OpCall(f"aten::{op}", args=args, mutated=mutated)


def _convolution(row: Row, dtype: str) -> OpCall:
    (n, c, h, w), (o, _, kh, kw) = row["shapes"]
    s, p = row["stride"], row["padding"]
    order = (0, 2, 3, 1) if row["channels_last"] else None
    x, weight = contiguous((n, c, h, w), dtype, order), contiguous((o, c, kh, kw), dtype, order)
    y = contiguous((n, o, (h + 2 * p - kh) // s + 1, (w + 2 * p - kw) // s + 1), dtype, order)
    if row["op"] == "conv2d":
        return call("cudnn_convolution", y, self=x, weight=weight)
    return call(
        "convolution_backward", [x, weight], grad_output=y, input=x, weight=weight, output_mask=(True, True, False)
    )


def _batch_norm(row: Row, dtype: str) -> OpCall:
    shape = tuple(row["shapes"][0])
    x = contiguous(shape, dtype, (0, 2, 3, 1) if row["channels_last"] else None)
    return call("native_batch_norm", x, input=x, weight=contiguous((shape[1],), "float32"), training=True)


_MAKERS: tuple[tuple[Callable[[Row], bool], Callable[[Row, str], OpCall]], ...] = (
    (lambda row: row["op"] in ("mm", "addmm"), _product),
    (lambda row: row["op"] == "bmm", _batched_product),
    (lambda row: row["op"].startswith("sdpa"), _attention),
    (lambda row: row["op"].startswith("conv2d"), _convolution),
    (lambda row: row["op"] == "batch_norm", _batch_norm),
    (lambda row: "vocab" in row, _lookup),
    (lambda row: "tensors" in row, _list),
    (lambda row: "numel" in row, _pointwise),
    (lambda row: "shapes" in row, _rows),
)


def in_step_ns(curve: str, device_ns: float) -> float:
    """Measured time corrected for sustained load: 4 % less per doubling beyond 0.5 ms, at most 11 % (see above)."""
    if not curve.startswith("gemm/") or not curve.endswith("16"):
        return device_ns
    return device_ns * min(1.0, max(0.89, 1.0 - 0.04 * math.log2(device_ns / 500e3)))


def points(rows: list[Row]) -> Iterator[tuple[str, tuple[int, ...], float, float]]:
    """(curve, position, device ns, host ns) of each line; equal positions are averaged."""
    found: dict[tuple[str, tuple[int, ...]], list[tuple[float, float]]] = {}
    for row in rows:
        timed = call_of(row)
        if timed is None:
            continue
        works = describe(timed)
        assert len(works) == 1 and works[0].scale == 1.0, f"{row} is not one piece of work"
        key = (works[0].curves[0], works[0].at)
        found.setdefault(key, []).append((in_step_ns(key[0], row["us"] * 1e3), row["host_us"] * 1e3))
    for (curve, at), times in found.items():
        yield curve, at, sum(t[0] for t in times) / len(times), sum(t[1] for t in times) / len(times)


def read_rows(path: Path) -> list[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def write(rows: list[Row], header: dict[str, str], path: Path) -> int:
    """Writes the table; returns the number of points. The bytes depend on the input only (no time stamp)."""
    lines = [f"# {key}: {value}" for key, value in header.items()]
    body = sorted(f"{curve},{' '.join(map(str, at))},{ns:.0f},{host:.0f}" for curve, at, ns, host in points(rows))
    text = "\n".join(lines + body) + "\n"
    with open(path, "wb") as raw, gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=9) as file:
        file.write(text.encode())
    return len(body)


# Figures of the measured GPU: NVIDIA H200 data sheet (dense, no sparsity) and device properties.
H200 = {
    "gpu": "NVIDIA H200",
    "compute_capability": "9.0",
    "num_sms": "132",
    "memory_bytes_per_s": "4.8e12",
    "l2_bytes": str(50 << 20),
    "peak_flops": "float64=67e12 float32=67e12 tf32=494.5e12 float16=989e12 bfloat16=989e12 float8=1979e12 "
    "int8=1979e12",
    "method": "device events over 6-60 launches behind a sleep kernel, inputs rotated beyond L2; 16-bit products of "
    "more than 0.5 ms corrected to in-step clocks (phantora.compute.build_table)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--date", default="2026-11-29")
    parser.add_argument("--driver", default="580.159.04 (CUDA 13.0)")
    parser.add_argument("--torch", default="2.11.0+cu130")
    options = parser.parse_args()
    header = H200 | {"date": options.date, "driver": options.driver, "torch": options.torch}
    print(write(read_rows(options.rows), header, options.out), "points")


if __name__ == "__main__":
    main()
