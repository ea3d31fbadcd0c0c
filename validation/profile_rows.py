"""Rows of profiled steps as operator calls: exact ones from Kineto traces, inferred ones from ops.json profiles."""

from __future__ import annotations

import ast
import gzip
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phantora.compute import TensorSpec
from phantora.validation.profile_calls import contiguous, make_call
from phantora.validation.profile_guess import Calls, Guess

# fmt: off
_TYPES = {
    "float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16", "double": "float64", "long int": "int64",
    "long": "int64", "int": "int32", "bool": "bool", "unsigned char": "uint8",
}
# Operators whose kernels are launched by operators inside them; their time is taken whole.
_WHOLE = (
    "aten::embedding_dense_backward", "aten::nll_loss_backward", "aten::convolution_backward",
    "aten::cudnn_convolution",
    "aten::_embedding_bag_dense_backward", "aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward",
)
# fmt: on
_MAKES_ZEROS = ("embedding_dense_backward", "_embedding_bag_dense_backward", "nll_loss_backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One operator with one set of shapes: how often, and its measured time in all calls together."""

    op: str
    shapes: str
    count: int
    measured_ns: float
    calls: Calls
    """(call, share of the row's count); several when the row mixes dtypes, none when the call cannot be rebuilt."""
    zeros_apart: bool = False
    """The profile lists the zeros that the operator makes for its result in another row (fill_)."""


def kineto_rows(path: Path, num_params: int) -> Iterator[Row]:
    """Rows of a Kineto trace, exact in dtypes and strides; lists, which it lacks, are taken as all parameters."""
    guess = Guess(path.name.removesuffix(".kineto.json.gz"), [], num_params)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    owners, device_ns = _owners(events), defaultdict(float)
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
            device_ns[owners.get(event["args"].get("External id"))] += event["dur"] * 1e3
    grouped: dict[str, list[dict]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op" and event["args"]["External id"] in device_ns:
            described = [str(event["args"].get(key)) for key in ("Input Dims", "Input type", "Input Strides")]
            grouped["|".join([event["name"], *described])].append(event)
    for group in grouped.values():
        yield Row(
            op=group[0]["name"].removeprefix("aten::"),
            shapes=str(group[0]["args"].get("Input Dims"))[:110],
            count=len(group),
            measured_ns=sum(device_ns[event["args"]["External id"]] for event in group),
            calls=_kineto_calls(group[0], guess),
        )


def _owners(events: list[dict]) -> dict[int, int]:
    """External id of every operator -> that of the operator which is priced for it (itself or one of _WHOLE)."""
    owners: dict[int, int] = {}
    threads: dict[int, list[dict]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "cpu_op":
            threads[event["tid"]].append(event)
    for ops in threads.values():
        around: list[tuple[float, int]] = []  # ends and ids of whole operators that are still open
        for event in sorted(ops, key=lambda e: (e["ts"], -e["dur"])):
            own = event["args"]["External id"]
            around = [entry for entry in around if entry[0] > event["ts"]]
            owners[own] = around[0][1] if around else own
            if event["name"] in _WHOLE:
                around.append((event["ts"] + event["dur"], own))
    return owners


def _kineto_calls(event: dict, guess: Guess) -> Calls:
    name, args = event["name"].removeprefix("aten::"), event["args"]
    if name.startswith("_foreach"):
        return guess.lists(name, len(args["Input type"]))
    fields = zip(args["Input Dims"], args["Input Strides"], args["Input type"], args["Concrete Inputs"], strict=True)
    call = make_call(name, [_value(*field) for field in fields])
    return ((call, 1.0),) if call is not None else ()


def _value(shape: list, stride: list, kind: str, text: str) -> object:
    if kind in _TYPES:
        if not shape and _TYPES[kind] in ("float64", "int64"):  # a Python number that torch wrapped
            return TensorSpec((), (), _TYPES[kind], "cpu")
        return TensorSpec(tuple(shape), tuple(stride), _TYPES[kind])
    if kind == "TensorList":  # without dtypes
        return tuple(
            TensorSpec(tuple(s), tuple(st), "bfloat16") if st else contiguous(s, "bfloat16")
            for s, st in zip(shape, stride)
        )
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return None
    return tuple(value) if isinstance(value, list) else value


def ops_rows(path: Path, num_params: int) -> Iterator[Row]:
    """Rows of an ops.json profile."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    guess = Guess(path.name.removesuffix(".ops.json"), rows, num_params)
    for row in rows:
        if row["op"].startswith("aten::") and row["device_us"] > 0:
            name, shapes = row["op"][6:], json.loads(row["shapes"])
            twice = name == "addmm" and guess.mixed and row["count"] % 24 == 0  # autocast enters addmm twice
            yield Row(
                op=name,
                shapes=row["shapes"][:110],
                count=row["count"] // 2 if twice else row["count"],
                measured_ns=row["device_us"] * 1e3,
                calls=guess.calls(name, shapes),
                zeros_apart=name in _MAKES_ZEROS,
            )
