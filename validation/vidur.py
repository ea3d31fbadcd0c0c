"""Operator times of Llama-2-7B that Vidur measured on an A100 and an H100, against prices scaled from the H200's.

usage: python -m phantora.validation vidur FOLDER      (holds vidur_a100_llama2_7b_mlp.csv.gz, vidur_h100_...)

Columns and sizes: Vidur (MIT licence), profiling of MLP and attention projections by tokens and tensor-parallel degree,
float16, median of the repetitions. One constant of the prices was chosen on these rows: how much of what the H200 shows
beyond the model is carried to a GPU of another generation (pricer._CARRIED, the A100 rows).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from phantora.compute import OpCall
from phantora.compute.described import calls_of
from phantora.compute.pricer import Pricer, pricer_of
from phantora.compute.roof import STEP_GAP_NS

_CLUSTERS = {"a100": "dgx-a100-80g", "h100": "dgx-h100"}
# Kernels of products overlap the ends of their neighbours: 0.3 us from one to the next (median of the H200's products).
_PRODUCT_GAP_NS = 300
Row = dict[str, str]


def _linear(inner: Callable[[Row], int], outer: Callable[[Row], int]) -> Callable[[Row], dict[str, object]]:
    def make(row: Row) -> dict[str, object]:
        m, k, n = int(row["num_tokens"]), inner(row), outer(row)
        return {"op": "mm", "shapes": [[m, k], [k, n]], "layout": "nt", "dtype": "fp16"}

    return make


def _share(row: Row, size: int) -> int:
    return size // int(row["num_tensor_parallel_workers"])


def _rows(op: str, width: Callable[[Row], int]) -> Callable[[Row], dict[str, object]]:
    return lambda row: {"op": op, "shapes": [[int(row["num_tokens"]), width(row)]], "dtype": "fp16"}


_HIDDEN, _INNER = 4096, 11008
# Vidur's operators that are one kernel each; rotary embedding and the gated activation, vLLM's own, are left out. So is
# the norm in the figure for torch's operators: the engine that Vidur profiled has a kernel of its own for it (a block per
# token, two passes over scalars; 66 us for 67 MB on the H100), while the price is that of torch's.
_NOT_TORCH = ("input_layernorm",)
OPERATORS: dict[str, Callable[[Row], dict[str, object]]] = {
    "attn_pre_proj": _linear(lambda r: _HIDDEN, lambda r: _share(r, 3 * _HIDDEN)),
    "attn_post_proj": _linear(lambda r: _share(r, _HIDDEN), lambda r: _HIDDEN),
    "mlp_up_proj": _linear(lambda r: _HIDDEN, lambda r: _share(r, 2 * _INNER)),
    "mlp_down_proj": _linear(lambda r: _share(r, _INNER), lambda r: _HIDDEN),
    "input_layernorm": _rows("rms_norm", lambda r: _HIDDEN),
    "add": _rows("add", lambda r: _HIDDEN),
}


def errors(path: Path, cluster: str) -> dict[str, list[tuple[float, float]]]:
    """operator -> (predicted / measured - 1, measured us) of every row."""
    pricer = pricer_of(cluster)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            for name, make in OPERATORS.items():
                measured_us = float(row[f"time_stats.{name}.median"] or 0) * 1e3
                if measured_us > 0:
                    calls: tuple[OpCall, ...] = calls_of(make(row))[0]
                    predicted_us = sum(_kernel_ns(call, pricer) for call in calls) / 1e3
                    found[name].append((predicted_us / measured_us - 1.0, measured_us))
    return found


def _kernel_ns(call: OpCall, pricer: Pricer) -> float:
    """Vidur times kernels (no gap to the next one) of a layer's operators one after the other, again and again.

    So products meet the clock of sustained load, while what pointwise operators read is warm, as in a step.
    """
    price = pricer.price(call)
    if price.family == "gemm":
        return pricer.repeated_ns(call) - _PRODUCT_GAP_NS * price.num_kernels
    return price.duration_ns - STEP_GAP_NS * price.num_kernels


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="vidur", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    for gpu, cluster in _CLUSTERS.items():
        found = errors(folder / f"vidur_{gpu}_llama2_7b_mlp.csv.gz", cluster)
        everything = [abs(error) for rows in found.values() for error, _ in rows]
        print(f"{gpu} as {cluster}: {len(everything)} points, median |error| {statistics.median(everything):.1%}")
        torch_alone = [abs(error) for name in found if name not in _NOT_TORCH for error, _ in found[name]]
        print(f"  torch's operators alone (without {', '.join(_NOT_TORCH)}): median {statistics.median(torch_alone):.1%}")
        products = [abs(error) for name in found if name.endswith("proj") for error, _ in found[name]]
        print(f"  matrix products alone: median {statistics.median(products):.1%}")
        for name, rows in found.items():
            ranked = sorted(abs(error) for error, _ in rows)
            bias = statistics.median(error for error, _ in rows)
            print(
                f"  {name:16} {len(rows):5}  median {statistics.median(ranked):6.1%}  p90 {ranked[int(0.9 * len(ranked))]:6.1%}"
                f"  bias {bias:+6.1%}"
            )
    return 0
