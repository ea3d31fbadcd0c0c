"""Rows of a profile and priced calls under one name: (operator, shapes of its tensors).

What is made equal: an operator and the one inside it that launches its kernels (relu is clamp_min, zero_ is fill_,
embedding gathers); attention by whichever backend; a copy between host and device (copy_ in a profile); parts that a
profiler lists in rows of their own (the zeros that an embedding's gradient begins with, its copy of a strided input).
A power of 1, which the gradient of a square asks for, is a copy. Numbers above 10,000 are compared by three digits:
random graphs differ a little.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from phantora.compute import OpCall, Pricer, TensorSpec
from phantora.compute.call_json import from_json
from phantora.compute.roof import STEP_GAP_NS
from phantora.compute.work import base_name, is_contiguous

Key = tuple[str, tuple[tuple[int, ...], ...]]

_SAME = {
    "convolution": "cudnn_convolution",
    "relu": "clamp_min",
    "zero_": "fill_",
    "pow": "copy_",
    "memcpy_h2d": "copy_",
    "memcpy_d2d": "copy_",
    "memcpy_d2h": "_local_scalar_dense",
    "clone": "copy_",
    "_to_copy": "copy_",
    "index_select": "gather",
}
_MAKES_ZEROS = ("embedding_dense_backward", "_embedding_bag_dense_backward", "nll_loss_backward")
_LEAST_KERNEL_NS = 300  # no kernel is shorter between a profiler's time stamps


def measured_rows(path: Path) -> dict[Key, float]:
    """(operator, shapes) -> device ns of a profiled step."""
    found: dict[Key, float] = defaultdict(float)
    for row in json.loads(path.read_text(encoding="utf-8")):
        if row["op"].startswith("aten::") and row["device_us"] > 0:
            shapes = [tuple(s) for s in json.loads(row["shapes"]) if s and not isinstance(s[0], list)]
            found[_key(row["op"].removeprefix("aten::"), shapes)] += row["device_us"] * 1e3
    return dict(found)


def simulated_rows(short: Path, long: Path, pricer: Pricer) -> dict[Key, float]:
    """(operator, shapes) -> priced kernel ns of what the longer run does more."""
    before, found = _counts(short), defaultdict(float)
    for text, count in _counts(long).items():
        more = count - before.get(text, 0)
        if more > 0:
            for key, ns in _parts(from_json(json.loads(text)), pricer):
                found[key] += ns * more
    return dict(found)


def _counts(run: Path) -> dict[str, int]:
    counts = {}
    for text in (run / "operators.jsonl").read_text(encoding="utf-8").splitlines():
        fields = json.loads(text)
        count, _ = fields.pop("count"), fields.pop("duration_ns")
        counts[json.dumps(fields)] = count
    return counts


def _parts(call: OpCall, pricer: Pricer) -> Iterator[tuple[Key, float]]:
    """A call's rows in a profile, with their kernel time (no gaps between kernels)."""
    name = base_name(call.name)
    shapes = [value.shape for _, value in call.args if isinstance(value, TensorSpec) and value.shape]
    if name.startswith("memcpy") and shapes:  # a profiler shows the transfer alone, not the staging of pageable memory
        call = OpCall(call.name, args=(*(a for a in call.args if a[0] != "pinned"), ("pinned", True)))
    own = _kernel_ns(call, pricer)
    if name in _MAKES_ZEROS and call.outputs:
        made = call.outputs[0]
        zeros = _kernel_ns(OpCall("aten::zero_", args=(("self", made),), outputs=(made,), mutated=("self",)), pricer)
        own -= zeros
        yield _key("zero_", [made.shape]), zeros
    grad = call.arg("grad")
    if "bag_dense_backward" in name and isinstance(grad, TensorSpec) and not is_contiguous(grad):
        copy = _kernel_ns(OpCall("aten::clone", args=(("self", grad),), outputs=(_dense(grad),)), pricer)
        own -= copy
        yield _key("copy_", [grad.shape, grad.shape]), copy
    yield _key(name, shapes), max(own, _LEAST_KERNEL_NS)


def _kernel_ns(call: OpCall, pricer: Pricer) -> float:
    price = pricer.price(call)
    return max(price.duration_ns - STEP_GAP_NS * price.num_kernels, _LEAST_KERNEL_NS * price.num_kernels)


def _dense(tensor: TensorSpec) -> TensorSpec:
    strides, expected = [], 1
    for size in reversed(tensor.shape):
        strides.append(expected)
        expected *= size
    return TensorSpec(tensor.shape, tuple(reversed(strides)), tensor.dtype)


def _key(name: str, shapes: list[tuple[int, ...]]) -> Key:
    named = _SAME.get(name, name)
    if "attention" in name and "scaled_dot" in name or name.startswith(("_cudnn_attention", "_flash", "_efficient")):
        return f"attention {'backward' if 'backward' in name else 'forward'}", (shapes[0],)
    if name == "gather" and len(shapes) > 1 and shapes[0][1:] == shapes[1][1:]:
        return "lookup", _rounded([shapes[0], shapes[1][:1]])
    if name == "index_select":
        return "lookup", _rounded([shapes[0], shapes[1]])
    if named == "copy_":
        return named, _rounded(shapes[:1])
    return named, _rounded(shapes)


def _rounded(shapes: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(float(f"{size:.3g}")) if size > 10_000 else size for size in shape) for shape in shapes)
